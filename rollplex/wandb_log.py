"""Weights & Biases as a sink: the numbers, the timeline as a Plotly panel, the rollouts as a table with pictures.

The one file that imports wandb, and only when the first step comes. Offline unless the user says otherwise.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rollplex.views.pictures import pictures, side_by_side
from rollplex.views.rollouts import prompt_text
from rollplex.views.timeline import timeline

if TYPE_CHECKING:
    import wandb

    from rollplex.step import Step
    from rollplex.trace import Trace

Mode = Literal["offline", "online", "disabled"]

STEP = "train/step"
"""The one step axis, given with every row: side logging by the user cannot shift it."""

_COLUMNS = ("step", "prompt", "response", "reward", "advantage", "tokens", "finished", "question", "text", "pictures")
_MAX_ROWS = 64
"""Responses in one table; whole groups, in prompt order."""
_MAX_SIDE = 224
"""Pixels of a picture's longer side."""


class WandB:
    """A sink that writes a W&B run: below ``dir`` while offline, to the server with ``mode="online"``.

    The timeline of a step is logged every ``timeline_every`` steps and its rollouts every ``rollouts_every`` (0: never).
    All pictures of a prompt stand side by side in one cell. Anything else goes to ``wandb.init``: ``name``, ``config``,
    ``tags``, ``entity``, ``settings``. Where wandb is not installed, one warning says so and nothing is written.
    """

    def __init__(
        self,
        project: str = "rollplex",
        mode: Mode = "offline",
        dir: str | Path | None = None,  # noqa: A002 - the name that wandb.init has
        timeline_every: int = 10,
        rollouts_every: int = 10,
        **init: Any,
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(f"making a W&B sink: mode is {mode!r}. Choose one of {', '.join(get_args(Mode))}.")
        self.project, self.dir = project, dir
        self.mode: Mode = mode
        self.timeline_every, self.rollouts_every = timeline_every, rollouts_every
        self._init = init
        self._run: wandb.Run | None = None
        self._installed = _is_installed()
        if not self._installed:
            warnings.warn(
                "making a W&B sink: wandb is not installed, so it writes nothing. `pip install wandb` to use it.",
                RuntimeWarning,
                stacklevel=2,
            )

    def write(self, step: Step, metrics: Mapping[str, float], trace: Trace) -> None:
        """Log one step in one row."""
        if not self._installed:
            return
        if self._run is None:
            self._run = self._start(step, trace)
        row: dict[str, Any] = {STEP: step.index, **metrics}
        if _due(step.index, self.timeline_every) and any(tick.step == step.index for tick in trace.ticks):
            row["timeline"] = _plotly(trace, step.index)
        if _due(step.index, self.rollouts_every) and step.rollout is not None:
            row |= _rollouts(step)
        self._run.log(row)

    def close(self) -> None:
        """Finish the run; a later `write` starts another."""
        if self._run is not None:
            self._run.finish()
            self._run = None

    def _start(self, step: Step, trace: Trace) -> wandb.Run:
        import wandb

        about = {"seed": step.seed, "schedule": trace.schedules.get(step.index), "device": trace.device}
        init = dict(self._init)
        config = about | init.pop("config", {})
        settings = init.pop("settings", None) or _settings(self.mode)
        run = wandb.init(
            project=self.project,
            mode=self.mode,
            dir=self.dir,
            config=config,
            settings=settings,
            reinit="create_new",
            **init,
        )
        run.define_metric(STEP)
        run.define_metric("*", step_metric=STEP)
        return run

    def __repr__(self) -> str:
        return f"WandB({self.project!r}, mode={self.mode!r})"


def _settings(mode: Mode) -> wandb.Settings:
    """Quiet, and with nothing read off the machine, while offline; online W&B's own, but it leaves the console alone."""
    import wandb

    if mode == "online":
        return wandb.Settings(console="off")
    return wandb.Settings(
        console="off", silent=True, x_disable_stats=True, x_disable_meta=True, x_save_requirements=False
    )


def _is_installed() -> bool:
    # The folder "wandb" that offline runs are written to also passes for a package; it has no file of its own.
    spec = importlib.util.find_spec("wandb")
    return spec is not None and spec.origin is not None


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _plotly(trace: Trace, step: int) -> wandb.Plotly:
    import wandb

    return wandb.Plotly(timeline(trace, step, max_bars=500))


def _rollouts(step: Step) -> dict[str, Any]:
    """The table, and the same pictures by themselves: W&B keeps a table's outside the folder of an offline run."""
    import wandb

    assert step.rollout is not None
    table, shown = wandb.Table(columns=list(_COLUMNS)), []
    scores = {g.prompt: g.values.tolist() for g in step.rewards.groups} if step.rewards else {}
    for order, group in enumerate(step.rollout.groups):
        if table.data and len(table.data) + group.size > _MAX_ROWS:
            break
        prompt = step.prompts[group.prompt]
        words = prompt_text(prompt)
        sheet = side_by_side(pictures(prompt, side=_MAX_SIDE))
        picture = wandb.Image(sheet, caption=words) if sheet is not None else None
        shown += [picture] if picture is not None else []
        gains = step.suffix.advantages[order].tolist() if step.suffix else [None] * group.size
        rewards = scores.get(group.prompt, [None] * group.size)
        for i, text in enumerate(group.texts[:_MAX_ROWS]):
            reward = None if rewards[i] is None or math.isnan(rewards[i]) else rewards[i]
            place = (step.index, group.prompt, i)
            table.add_data(
                *place, reward, gains[i], int(group.lengths[i]), bool(group.finished[i]), words, text, picture
            )
    return {"rollouts": table} | ({"rollouts/pictures": shown} if shown else {})
