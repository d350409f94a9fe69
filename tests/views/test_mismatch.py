"""The light shows what the step holds."""

from dataclasses import replace

from views import fakes

from rollplex.mismatch import Mismatch
from rollplex.views.live import still
from rollplex.views.mismatch import COLORS, light, mismatches


def test_a_fault_is_red_and_said() -> None:
    text = light(Mismatch(mean=0.2, max=0.9)).text
    assert COLORS["red"] in text
    assert "do not agree" in text


def test_the_live_view_has_the_light_of_its_step() -> None:
    made = fakes.step(0)
    assert made.suffix is not None
    fault = replace(made, suffix=replace(made.suffix, mismatch_mean=0.2))
    assert "engine and trainer agree" in still(made, fakes.trace(0), []).text
    assert "engine and trainer do not agree" in still(fault, fakes.trace(0), []).text


def test_the_curve_has_every_step_and_both_thresholds() -> None:
    figure = mismatches([Mismatch(mean=0.0, max=0.0), Mismatch(mean=0.007, max=0.1), Mismatch(mean=0.5, max=0.9)])
    assert figure.data[0].marker.color == (COLORS["green"], COLORS["amber"], COLORS["red"])
    assert [shape.y0 for shape in figure.layout.shapes] == [0.005, 0.01]
    assert figure.data[0].y[0] > 0, "equal probabilities have a place on a logarithmic axis"
