import pytest
from views import fakes

from rollplex.trace import MemorySample, Trace
from rollplex.views.memory import memory


def areas(figure: object) -> dict[str, object]:
    return {area.name: area for area in figure.data if area.type == "scatter"}  # type: ignore[attr-defined]


def test_areas_add_up_to_the_peak_that_the_title_tells() -> None:
    figure = memory(fakes.trace(0))
    heights = [sum(column) for column in zip(*(area.y for area in areas(figure).values()), strict=True)]
    assert max(heights) == 13
    assert "peak 13 MiB" in figure.layout.title.text


def test_thinning_never_loses_a_peak() -> None:
    samples = [MemorySample(0, float(i), {"a": 1000 if i == 4321 else 1}) for i in range(10_000)]
    figure = memory(Trace(samples=samples, schedules={0: "S"}), max_samples=50)
    assert len(areas(figure)["a"].x) <= 51  # type: ignore[attr-defined]
    assert max(areas(figure)["a"].y) == 1000  # type: ignore[attr-defined]


def test_an_owner_that_is_gone_has_no_bytes() -> None:
    samples = [MemorySample(0, 0.0, {"kv": 5}), MemorySample(0, 1.0, {"weights": 7})]
    figure = memory(Trace(samples=samples, schedules={0: "S"}))
    assert list(areas(figure)["kv"].y) == [5, 0, 0]  # type: ignore[attr-defined]


def test_the_budget_is_drawn_and_told() -> None:
    figure = memory(fakes.trace(0), budget_bytes=16 * 2**20)
    assert "of 16 MiB" in figure.layout.title.text
    assert figure.layout.shapes[0].y0 == 16
    assert not memory(fakes.trace(0)).layout.shapes


def test_the_traces_own_budget_is_drawn_unless_another_is_given() -> None:
    trace = fakes.trace(0)
    trace.budget_bytes = 20 * 2**20
    assert memory(trace, 0).layout.shapes[0].y0 == 20
    assert memory(trace, 0, budget_bytes=16 * 2**20).layout.shapes[0].y0 == 16


def test_host_memory_has_a_panel_of_its_own() -> None:
    samples = [
        MemorySample(0, 0.0, {"weights": 4 * 2**20}, {"optimizer": 8 * 2**10}),
        MemorySample(0, 1.0, {}, {"optimizer": 8 * 2**10, "weights": 4 * 2**20}),
    ]
    figure = memory(Trace(samples=samples, schedules={0: "S"}, budget_bytes=4 * 2**20))
    host = {area.name: area for area in figure.data if area.yaxis == "y3"}
    assert list(host["weights"].y) == [0, 4, 4]
    assert host["optimizer"].showlegend
    assert not host["weights"].showlegend, "it is in the legend once"
    weights = next(area for area in figure.data if area.name == "weights" and area.yaxis != "y3")
    assert weights.line.color == host["weights"].line.color
    panels = [figure.layout.yaxis.domain, figure.layout.yaxis3.domain]
    assert panels[1][1] < panels[0][0], "the panels do not overlap"
    assert figure.layout.shapes[0].yref == "y", "the budget is the device's"
    assert "peak 4 MiB of 4 MiB" in figure.layout.title.text


def test_without_host_memory_there_is_no_empty_panel() -> None:
    assert "yaxis3" not in memory(fakes.trace(0)).layout.to_plotly_json()


def test_phases_and_memory_share_their_time() -> None:
    figure = memory(fakes.trace(0, 1), 1)
    update = next(bars for bars in figure.data if bars.name == "update")
    assert update.base[0] == pytest.approx(1.7)
    assert list(areas(figure)["rollout.kv"].x)[:3] == pytest.approx([0.0, 0.5, 1.0])  # type: ignore[attr-defined]


def test_without_samples_the_error_says_which_steps_have_some() -> None:
    with pytest.raises(ValueError, match=r"step 3.*\[0, 1\]"):
        memory(fakes.trace(0, 1), 3)
    with pytest.raises(ValueError, match="no memory samples"):
        memory(fakes.turns())
