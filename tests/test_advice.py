"""Advice: from rates of one device to schedules on another."""

from dataclasses import replace

import pytest
from costs.fakes import written
from tiny_policy import phases, task, tiny

from rollplex.advice import Advice, advise
from rollplex.costs.decoding import Speed
from rollplex.costs.geometry import geometry
from rollplex.costs.measured import Measured
from rollplex.costs.rates import Rates
from rollplex.costs.workload import Workload
from rollplex.hardware import DEVICES
from rollplex.interference import NONE, Interference
from rollplex.phases.update import Update
from rollplex.run import Run

G32 = geometry("Qwen2.5-VL-32B")
DRAW = Workload(prompts=2, group=2, prompt_tokens=400, response_tokens=20, response_spread=0).draw()
RATES = Measured(
    geometry=G32,
    prefixes=dict.fromkeys(("policy_prefix", "reference_prefix", "prefill"), Rates.common(1e-14)),
    backward=Rates.common(2e-14),
    suffix=Rates.common(4e-14),
    speed=Speed(fixed_s=0.02, row_s=0.0, context_s=0.0, kv_bytes=1.0, per_group=True),
    reward_s=0.0,
    update_s=0.1,
)


def advice(device: str = "H200") -> Advice:
    return advise(written(RATES, DRAW), [DRAW], G32, device=device, measured_on=DEVICES["A100"])


def test_on_a_host_thread_nothing_overlaps() -> None:
    times = advice().step_s
    assert times["Rollplex"][0] == pytest.approx(times["Serial"][0], rel=1e-6)


def test_on_a_device_overlap_pays_and_everything_is_faster() -> None:
    times = advice().step_s
    assert times["Rollplex"][1] < times["Serial"][1]
    assert all(there < here for here, there in times.values())


def test_what_matters_is_ranked() -> None:
    shifts = list(advice().matters.values())
    assert shifts == sorted(shifts, reverse=True)
    assert shifts[0] > 0


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="H800"):
        advice("H9000")


def test_a_table_has_a_column_for_each_device_and_says_which_are_predicted() -> None:
    here = replace(DEVICES["A100"], name="cpu")
    made = advise(written(RATES, DRAW), [DRAW], G32, device=here, measured_on=here)
    assert made.here == made.there
    assert list(made.frame()) == [
        "schedule",
        "here (cpu), measured s",
        "here (cpu), predicted s",
        "there (cpu), predicted s",
    ]
    assert made.frame().set_index("schedule").iloc[0, 0] == pytest.approx(made.step_s["Serial"][0], rel=1e-3)
    assert "predicted" in repr(made)


def test_without_a_reference_none_is_predicted() -> None:
    whole = written(RATES, DRAW)
    (gone,) = [tick for tick in whole.ticks if tick.phase == "prefix(reference)"]
    left = [tick for tick in whole.ticks if tick is not gone]
    length = gone.end_s - gone.start_s
    moved = [
        replace(t, start_s=t.start_s - length, end_s=t.end_s - length) if t.start_s >= gone.end_s else t for t in left
    ]
    alone = replace(whole, ticks=moved)
    one, other = (advise(t, [DRAW], G32, measured_on=DEVICES["A100"]).step_s["Serial"][0] for t in (whole, alone))
    assert one - other == pytest.approx(length)


def test_steps_of_a_gpu_are_scaled_by_its_own_peaks() -> None:
    trace = replace(written(RATES, DRAW), device="NVIDIA H100 80GB HBM3")
    same = advise(trace, [DRAW], G32, device="H100", interference=NONE)
    assert all(here == pytest.approx(there) for here, there in same.step_s.values())


def test_a_gpu_that_is_not_known_must_be_described() -> None:
    trace = replace(written(RATES, DRAW), device="NVIDIA GH200 480GB")
    with pytest.raises(ValueError, match="Pass measured_on="):
        advise(trace, [DRAW], G32)
    assert advise(trace, [DRAW], G32, measured_on=DEVICES["H100"]).best()


def test_where_serial_is_best_the_next_best_is_looked_at() -> None:
    sliced = Interference.time_slicing()
    made = advise(written(RATES, DRAW), [DRAW], G32, measured_on=DEVICES["A100"], interference=sliced)
    assert max(made.matters.values()) > 0


def test_a_run_gives_advice_after_a_step_that_was_broken_off() -> None:
    """The lengths are those of the steps that were finished, and go with them."""
    run = Run(task(), phases(tiny()), prompts=2)
    for _ in run.steps(2):
        pass
    before = run.advise(device="H100").measured_s
    update = next(phase for phase in run.phases if isinstance(phase, Update))
    update.optimizer.norm = lambda: float("nan")  # type: ignore[method-assign]
    with pytest.raises(FloatingPointError):
        run.step()
    assert run.trace.steps() == [0, 1, 2]
    assert run.advise(device="H100").measured_s == before


def test_lanes_that_worked_at_the_same_time_give_no_advice() -> None:
    whole = written(RATES, DRAW)
    last = whole.ticks[-1]
    beside = replace(last, lane="other", phase="prefix(policy)", label="layer 0", start_s=0.0)
    with pytest.raises(ValueError, match=r"under rx\.Serial\(\)"):
        advise(replace(whole, ticks=[*whole.ticks, beside]), [DRAW], G32, measured_on=DEVICES["A100"])
