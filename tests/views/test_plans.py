"""Figures of plans show the plans' own numbers."""

from dataclasses import replace

import pytest

from rollplex.memory.footprint import footprint as weigh
from rollplex.memory.managed import POLICIES, peaks
from rollplex.published import shape
from rollplex.sharing.descriptors import MegatronTrainer
from rollplex.sharing.plan import SharingPlan, sharing_plan
from rollplex.views.coverage import coverage
from rollplex.views.footprint import footprint


@pytest.fixture(scope="module")
def plan() -> SharingPlan:
    model = shape("Qwen2.5-VL-7B")
    short = replace(model, text=replace(model.text, num_layers=2))
    return sharing_plan(short, train_tp=4, rollout_tp=2, trainer=MegatronTrainer())


def test_areas_of_a_case_add_up_to_it_and_cases_to_the_model(plan: SharingPlan) -> None:
    (areas,) = coverage(plan).data
    of = dict(zip(areas.ids, areas.values, strict=True))
    for parent in ("Qwen2.5-VL-7B", "case 1", "case 2", "case 3"):
        inside = [of[i] for i, above in zip(areas.ids, areas.parents, strict=True) if above == parent]
        assert sum(inside) == of[parent]
    assert of["case 3"] == plan.parameters(3) > 0


def test_layers_are_added_up_and_the_reason_is_told(plan: SharingPlan) -> None:
    (areas,) = coverage(plan).data
    place = areas.ids.index("case 3/self_attn.linear_qkv.weight")
    assert "2 tensors" in areas.customdata[place][1]
    assert "no single stride" in areas.customdata[place][1]


def test_bars_are_as_high_as_the_table_says() -> None:
    table = weigh("Qwen2.5-VL-7B", train_tp=4, rollout_tp=2)
    bars = footprint(table, POLICIES[1]).data
    heights = [sum(bar.y[i] for bar in bars) for i in range(4)]
    assert heights == pytest.approx([table.total_gib, *(p.gib for p in peaks(table, POLICIES[1]))], abs=0.2)
