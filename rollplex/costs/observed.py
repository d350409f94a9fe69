"""Traced steps beside their lengths: seconds by kind of work, and in how many passes it was done.

This file knows what phases call their ticks. What an operation costs is fitted elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rollplex.costs.workload import Draw
from rollplex.metrics import concurrent_s
from rollplex.trace import ADMIT, Tick, Trace

PREFIXES = {"policy_prefix": "prefix(policy)", "reference_prefix": "prefix(reference)", "prefill": "prefill"}
"""Field of a prefix, or ``"prefill"`` -> the kind of its forward."""
KINDS = (*PREFIXES.values(), "decode", "reward", "suffix", "backward", "update")
"""Kinds of work that have costs; whatever else a step takes is beside them."""
FORWARD = ("vision", "layer", "submit")
"""How the ticks of a prompt forward begin, an engine's own or one that a backward repeats; ``submit`` is vLLM's."""
TOGETHER = 0.02
"""Share of a step in which lanes may work at once, as clocks have it; above it, no phase's time is its own."""


@dataclass(frozen=True, eq=False)
class Observed:
    """A finished step."""

    trace: Trace
    """Of this step alone."""
    draw: Draw
    """Its lengths."""

    @property
    def ticks(self) -> list[Tick]:
        """All of them."""
        return self.trace.ticks

    def of(self, kind: str) -> list[Tick]:
        """The ticks of a kind of work."""
        return [tick for tick in self.ticks if kind_of(tick) == kind]

    def seconds(self, kind: str) -> float:
        """Time of a kind of work; 0 where the step shows none."""
        return sum(tick.end_s - tick.start_s for tick in self.of(kind))

    def passes(self, kind: str) -> int:
        """Passes in which a prompt forward, or the backward of one, was done: each begins, or ends, with a tick of its own."""
        mark = "prefix backward" if kind == "backward" else "vision"
        return max(sum(tick.label.startswith(mark) for tick in self.of(kind)), 1)

    @property
    def beside_s(self) -> float:
        """What no kind accounts for: between ticks, moves within a budget, closing, phases of somebody's own."""
        return max(self.trace.step_s(self.trace.steps()[0]) - sum(map(self.seconds, KINDS)), 0.0)


def kind_of(tick: Tick) -> str:
    """What kind of work a tick is; ``"beside"`` if it is of none.

    >>> [kind_of(Tick(0, "s", "lane", "suffix", label, 0.0, 1.0)) for label in ("8 responses", "layer 3", "scale")]
    ['suffix', 'backward', 'beside']
    """
    forward = tick.label.startswith(FORWARD)
    match tick.phase:
        case "decode" if not forward:
            return "decode" if tick.label.startswith(("token", "group", "end")) else "beside"
        case "decode":
            return "prefill"
        case "suffix" if not tick.label.endswith("responses"):
            # A prefix whose graph was dropped is run again there: that is what its backward costs.
            return "backward" if forward or tick.label == "prefix backward" else "beside"
        case phase:
            return phase if phase in KINDS and tick.label != ADMIT else "beside"


def observed(trace: Trace, draws: Sequence[Draw]) -> list[Observed]:
    """The steps that some lengths belong to: those that a `Draw` names, or the last finished ones.

    A step that was broken off says nothing, and is left out.
    """
    unnamed = sum(draw.step is None for draw in draws)
    last = list(islice((index for index in reversed(trace.steps()) if _finished(trace, index)), unnamed))
    named = {draw.step for draw in draws if draw.step is not None}
    if len(last) < unnamed or not named <= set(trace.steps()):
        raise ValueError(
            f"reading costs from a trace: it has steps {trace.steps()}, not all of them finished, and lengths were given of "
            f"{len(draws)}{f', among them steps {sorted(named)}' if named else ''}. Give the lengths of steps that are in it."
        )
    steps = [(last.pop() if draw.step is None else draw.step, draw) for draw in draws]
    made = [Observed(trace.select(index), draw) for index, draw in steps if _finished(trace, index)]
    for each in made:
        _expect_alone(each)
    return made


def _finished(trace: Trace, index: int) -> bool:
    return any(tick.phase == "update" and tick.label == "end" for tick in trace.of_step(index))


def _expect_alone(step: Observed) -> None:
    """Refuse a step in which phases slowed each other: costs are what work takes alone."""
    index = step.trace.steps()[0]
    alone = replace(step.trace, ticks=[tick for tick in step.ticks if tick.phase != "reward"])
    together = concurrent_s(alone)
    if together > TOGETHER * step.trace.step_s(index):
        raise ValueError(
            f"reading costs from a trace: in step {index} lanes worked at the same time for {together:.3g} s, so that no "
            "phase's time is its own. Make a few steps under rx.Serial(), and use these."
        )
