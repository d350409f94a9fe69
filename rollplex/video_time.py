"""How much time passes between the temporal patches of a row's videos."""

from __future__ import annotations

import math
from numbers import Real

from rollplex.task import Row

DEFAULT_FPS = 24.0
"""Frames per second of a video whose row does not say: what transformers assumes for bare frames."""


def second_per_grid_ts(row: Row, num_videos: int, temporal_patch_size: int, where: str) -> tuple[float, ...]:
    """Seconds between temporal patches of each video, from the row's columns or the default."""
    if not num_videos:
        return ()
    fps, seconds = row.get("fps"), row.get("second_per_grid_ts")
    if fps is not None and seconds is not None:
        raise ValueError(f"{where}: timing videos: found both 'fps' and 'second_per_grid_ts'. Keep one of the columns.")
    name, given = ("fps", fps) if seconds is None else ("second_per_grid_ts", seconds)
    given = DEFAULT_FPS if given is None else given
    values = [given] * num_videos if isinstance(given, Real) else given if isinstance(given, list | tuple) else []
    if len(values) != num_videos or not all(isinstance(v, Real) and math.isfinite(v) and float(v) > 0 for v in values):
        raise ValueError(
            f"{where}: timing {num_videos} videos: found {name} = {given}. Give one positive number, or one for each video."
        )
    return tuple(temporal_patch_size / float(v) if name == "fps" else float(v) for v in values)
