"""What a trace says of costs: only finished steps, only work that ran alone, each tick under its own kind."""

from dataclasses import replace

import pytest
from costs.fakes import written
from costs.test_costs import DRAW, G32, RATES

from rollplex.costs.costs import Order, total_s
from rollplex.costs.measured import Measured
from rollplex.costs.observed import kind_of, observed
from rollplex.trace import ADMIT, Tick, Trace

LABELS = [
    ("decode", "vision and embedding", "prefill"), ("decode", "layer 3", "prefill"), ("decode", "submit 0", "prefill"),
    ("decode", "token 7", "decode"), ("decode", "group 1 complete", "decode"), ("decode", "end", "decode"),
    ("decode", ADMIT, "beside"), ("decode", "copy of the weights", "beside"),
    ("suffix", "16 responses", "suffix"), ("suffix", "prefix backward", "backward"), ("suffix", "layer 3", "backward"),
    ("suffix", "vision and embedding", "backward"), ("suffix", ADMIT, "beside"), ("suffix", "scale", "beside"),
    ("prefix(policy)", "layer 3", "prefix(policy)"), ("prefix(policy)", ADMIT, "beside"), ("update", "chunk 3", "update"),
    ("update", ADMIT, "beside"), ("filter", "anything", "beside"),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "label", "kind"), LABELS)
def test_every_tick_has_a_kind(phase: str, label: str, kind: str) -> None:
    assert kind_of(Tick(0, "s", "lane", phase, label, 0.0, 1.0)) == kind


def later(trace: Trace, steps: int) -> Trace:
    """The same steps under later numbers, at later times."""
    ticks = [replace(t, step=t.step + steps, start_s=t.start_s + 99, end_s=t.end_s + 99) for t in trace.ticks]
    return Trace(ticks=ticks, schedules={step + steps: name for step, name in trace.schedules.items()})


def both(first: Trace, second: Trace) -> Trace:
    return Trace(ticks=[*first.ticks, *second.ticks], schedules=first.schedules | second.schedules)


def broken_off(trace: Trace) -> Trace:
    """Without its update, as an error in it leaves it."""
    return Trace(ticks=[t for t in trace.ticks if t.phase != "update"], schedules=trace.schedules)


WHOLE = written(RATES, DRAW)


def test_a_step_that_was_broken_off_says_nothing() -> None:
    trace = both(WHOLE, later(broken_off(WHOLE), 1))
    assert [step.trace.steps() for step in observed(trace, [DRAW])] == [[0]]
    assert observed(trace, [replace(DRAW, step=1)]) == []
    with pytest.raises(ValueError, match="no finished step was given"):
        Measured.from_trace(trace, [replace(DRAW, step=1)], G32)


def test_lengths_go_with_the_step_that_they_name() -> None:
    trace = both(WHOLE, later(WHOLE, 1))
    (named,) = observed(trace, [replace(DRAW, step=0)])
    (last,) = observed(trace, [DRAW])
    assert (named.trace.steps(), last.trace.steps()) == ([0], [1])


@pytest.mark.parametrize("draws", [[DRAW] * 2, [replace(DRAW, step=7)]])
def test_lengths_of_steps_that_are_not_there_are_refused(draws: list[object]) -> None:
    with pytest.raises(ValueError, match="Give the lengths of steps that are in it"):
        Measured.from_trace(WHOLE, draws, G32)  # type: ignore[arg-type]


def test_work_that_did_not_run_alone_is_refused() -> None:
    decode = next(tick for tick in WHOLE.ticks if tick.label == "token 0")
    beside = replace(decode, phase="prefix(policy)", lane="other", label="layer 1", end_s=decode.start_s + 0.2)
    with pytest.raises(ValueError, match=r"worked at the same time for 0\.2 s.*rx\.Serial\(\)"):
        Measured.from_trace(Trace(ticks=[*WHOLE.ticks, beside], schedules={0: "Rollplex"}), [DRAW], G32)


def test_a_wait_for_room_is_no_work_and_still_takes_its_time() -> None:
    last = WHOLE.ticks[-1]
    admit = replace(last, phase="suffix", label=ADMIT, start_s=last.end_s, end_s=last.end_s + 3)
    slow = Measured.from_trace(Trace(ticks=[*WHOLE.ticks, admit], schedules={0: "Serial"}), [DRAW], G32)
    fast = Measured.from_trace(WHOLE, [DRAW], G32)
    assert slow.backward == fast.backward
    assert slow.beside_s == pytest.approx(fast.beside_s + 3)


def test_without_a_reference_there_is_none_in_the_costs() -> None:
    alone = Trace(ticks=[t for t in WHOLE.ticks if t.phase != "prefix(reference)"], schedules={0: "Serial"})
    costs = Measured.from_trace(alone, [DRAW], G32)
    assert not costs.reference
    with pytest.raises(ValueError, match="reference=False"):
        costs.pieces(Order(field="reference_prefix", draw=DRAW, devices=1))


def test_passes_are_counted_and_needed_again() -> None:
    prefixes = [t for t in WHOLE.ticks if t.phase == "prefix(policy)"]
    (whole,) = prefixes
    half = (whole.start_s + whole.end_s) / 2
    halves = [replace(whole, label="vision", end_s=half), replace(whole, label="vision", start_s=half)]
    trace = Trace(ticks=[*(t for t in WHOLE.ticks if t is not whole), *halves], schedules={0: "Serial"})
    costs = Measured.from_trace(trace, [DRAW], G32)
    assert observed(trace, [DRAW])[0].passes("prefix(policy)") == 2
    assert costs.pass_tokens == DRAW.prompts.sum() / 2
    slow = replace(
        costs, prefixes=costs.prefixes | {"policy_prefix": replace(costs.prefixes["policy_prefix"], pass_s=1)}
    )
    more = total_s(slow.pieces(Order(field="policy_prefix", draw=DRAW, devices=1)))
    assert more - total_s(costs.pieces(Order(field="policy_prefix", draw=DRAW, devices=1))) == pytest.approx(2)
