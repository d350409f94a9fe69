"""Advice: from rates of one device to schedules on another."""

import pytest
from costs.fakes import written

from rollplex.advice import Advice, advise
from rollplex.costs.decoding import Speed
from rollplex.costs.geometry import geometry
from rollplex.costs.measured import Measured
from rollplex.costs.rates import Rates
from rollplex.costs.workload import Workload
from rollplex.hardware import DEVICES

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
