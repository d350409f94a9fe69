"""Rates fitted to measurements tell parts apart only where the measurements do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollplex.costs.geometry import GEOMETRIES
from rollplex.costs.rates import Rates
from rollplex.costs.work import Work, prefix_work
from rollplex.costs.workload import Workload

TRUTH = Rates(pass_s=0.2, vision_s=2e-12, text_s=1e-12, attention_s=0.5e-12)
SMALL = GEOMETRIES["Qwen2.5-VL-3B"]


def forward(prompts: int, tokens: int, share: float = 0.8) -> Work:
    workload = Workload(prompts=prompts, prompt_tokens=tokens, visual_share=share)
    return sum(prefix_work(SMALL, workload.draw()), Work())


def measured(*works: Work) -> list[tuple[Work, float]]:
    return [(work, TRUTH.seconds(work)) for work in works]


def test_work_of_many_sizes_tells_what_larger_work_takes() -> None:
    works = [forward(n, tokens, share) for n in (1, 4) for tokens in (20, 500, 2000) for share in (0.3, 0.95)]
    larger = forward(8, 6000, 0.97)
    assert Rates.fit(measured(*works)).seconds(larger) == pytest.approx(TRUTH.seconds(larger), rel=0.1)
    common = Rates.common(TRUTH.seconds(works[0]) / works[0].operations)
    assert common.seconds(larger) / TRUTH.seconds(larger) > 1.5  # one rate, from a small prompt, does not


def test_work_of_one_size_has_the_common_rate() -> None:
    work = forward(4, 500)
    rates = Rates.fit(measured(work, work))
    assert rates.pass_s == pytest.approx(0, abs=1e-9)
    common = TRUTH.seconds(work) / work.operations
    assert [rates.vision_s, rates.text_s, rates.attention_s] == pytest.approx([common] * 3)


def test_no_rate_is_below_zero() -> None:
    """Even where larger work took less time."""
    small, large = forward(1, 100), forward(4, 1000)
    rates = Rates.fit([(small, 1.0), (large, 0.5)])
    assert min(rates.pass_s, rates.vision_s, rates.text_s, rates.attention_s) >= 0


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_measurements_without_time_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="needs work and time"):
        Rates.fit([(forward(1, 100), seconds)])


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Rates.fit([])


def test_a_faster_device_is_faster_in_every_part() -> None:
    work = replace(forward(2, 300), passes=3)
    assert TRUTH.faster(4).seconds(work) == pytest.approx(TRUTH.seconds(work) / 4)
