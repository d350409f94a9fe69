"""The paper's evaluation: its numbers as data, and what the simulator makes of them."""

from statistics import median

import pytest

from rollplex.costs.geometry import GEOMETRIES
from rollplex.costs.placement import Placement
from rollplex.handoff import grid, why_not
from rollplex.hardware import cluster
from rollplex.paper import published, rollmux, table2
from rollplex.paper.cluster32 import ASSUMPTIONS, compare, main_ratios, prompt_tokens, workloads
from rollplex.paper.figures import cluster_frame, handoff_frame, rollmux_figure
from rollplex.paper.sensitivity import figure as figure_of
from rollplex.paper.sensitivity import sensitivity

CELLS = table2.cells()


def test_printed_speedups_follow_from_the_printed_times() -> None:
    for column, speedup in enumerate(published.SPEEDUPS):
        ratio = published.STEP_S[published.SEQUENTIAL][column] / published.STEP_S[published.MPS][column]
        assert ratio == pytest.approx(speedup, abs=0.0051)


def test_the_sequential_row_is_reproduced_as_it_was_given() -> None:
    given = [cell for cell in CELLS if cell.role == "given"]
    assert len(given) == 4
    assert max(cell.error for cell in given) < 1e-9


def test_cells_that_were_not_given_are_predicted_within_five_percent_at_the_median() -> None:
    assert [cell.role for cell in CELLS].count("predicted") == 28
    assert table2.median_error(CELLS, "predicted") <= 0.05


def test_the_predicted_winner_is_right_or_within_2_7_percent() -> None:
    assert all(float(str(row["excess"])) <= 0.027 for row in table2.winners(CELLS))


def test_the_four_speedups_are_reproduced_within_two_percent() -> None:
    for row in table2.speedups():
        assert float(str(row["simulated"])) == pytest.approx(float(str(row["published"])), rel=0.02)


def test_a_fit_that_ignores_the_policy_is_worse() -> None:
    # Control: the median would not notice if every policy were predicted like the default.
    caps = [cell for cell in CELLS if "70/30" in cell.policy]
    flat = [abs(published.STEP_S[published.MPS][published.DATASETS.index(c.dataset)] / c.published_s - 1) for c in caps]
    assert median(cell.error for cell in caps) < median(flat)


def test_the_sequential_row_alone_does_not_predict_within_five_percent() -> None:
    assert table2.strict_error() > 0.05


def test_a_fit_never_sees_the_data_set_that_it_predicts() -> None:
    assert "STAR" not in table2.fit(published.MPS, [0, 1, 2]).source


def test_prompts_span_what_the_paper_says_and_are_its_share_of_a_sequence() -> None:
    assert min(prompt_tokens()) == 470
    assert max(prompt_tokens()) == 5900
    for workload in workloads().values():
        assert 0.79 <= workload.prompt_tokens / (workload.prompt_tokens + workload.response_tokens) <= 0.98


@pytest.mark.parametrize(
    "ratio", ["versus_colocate", "versus_disaggregated", "wider_rollout", "on_partial", "on_oversampling"]
)
def test_the_32_gpu_ratios_lie_in_the_published_ranges(ratio: str) -> None:
    assert not [each.dataset for each in COMPARED if ratio in each.misses()]


COMPARED = compare()


def test_assumptions_that_differ_leave_the_ranges() -> None:
    # Control: the ranges are narrow enough to be left.
    changed = main_ratios(ASSUMPTIONS.moved("compute_stretch", 1.5))
    assert any(each.versus_colocate < published.VERSUS_COLOCATE[0] for each in changed)


def test_sensitivity_finds_where_a_ratio_leaves_its_range() -> None:
    ranges = {each.name: each for each in sensitivity(factors=(0.6, 1.0, 1.6)) if each.name == "compute_stretch"}
    assert ranges["compute_stretch"].low == 1.0
    assert ranges["compute_stretch"].first_out


def test_two_balanced_jobs_approach_twice_the_cost_efficiency() -> None:
    assert rollmux.efficiency(0.5, num_steps=24) == pytest.approx(2.0, abs=0.05)


def test_cost_efficiency_falls_with_imbalance_switching_and_variation() -> None:
    best = rollmux.efficiency(0.5)
    assert rollmux.efficiency(0.2) < best
    assert rollmux.efficiency(0.5, switch_share=0.05) < best
    assert rollmux.efficiency(0.5, spread=0.3) < best


def test_what_is_simulated_says_so() -> None:
    assert COMPARED[0].kind == "simulated"
    figure = rollmux_figure([rollmux.Point(rollout_share=0.5, switch_share=0.0, spread=0.0, ratio=2.0)])
    assert "simulated" in figure.layout.title.text
    assert "simulated" in figure.layout.yaxis.title.text
    bars = figure_of([each for each in sensitivity(factors=(1.0,)) if each.name == "prompt_s"])
    assert "simulated" in bars.layout.title.text
    assert any("simulated" in str(row) for row in cluster_frame(COMPARED).index)


def test_the_grid_of_prefills_has_only_cuts_that_heads_allow() -> None:
    points = grid(cluster("H800", num_nodes=4), prompts=(512,), responses=(64,))
    assert all(GEOMETRIES[p.model].can_cut(p.train_tp) and GEOMETRIES[p.model].can_cut(p.rollout_tp) for p in points)
    assert {p.model for p in points} == {"Qwen2.5-VL-7B", "Qwen2.5-VL-32B"}
    frame = handoff_frame(points)
    assert frame.columns.name == "simulated gain"
    assert not frame.isna().any().any()


def test_one_prefill_is_refused_across_types_pools_and_layouts() -> None:
    nested = Placement(train_tp=8, rollout_tp=4)
    assert not why_not(nested)
    assert "fp8" in why_not(nested, rollout_type="fp8")
    assert "network" in why_not(nested, same_pool=False)
    assert "nest" in why_not(Placement(train_tp=6, rollout_tp=4))
    assert "GiB" in why_not(nested, peak_bytes=2.0, limit_bytes=1.0)
