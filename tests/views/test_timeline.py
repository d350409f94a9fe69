import pytest
from views import fakes

from rollplex.trace import Trace
from rollplex.views.palette import phase_color
from rollplex.views.timeline import timeline, timelines


def test_the_title_says_how_the_times_came_about() -> None:
    measured, predicted = fakes.trace(0), fakes.trace(0)
    predicted.kind = "predicted"
    assert timeline(measured).layout.title.subtitle.text.startswith("measured on NVIDIA H200")
    assert timeline(predicted).layout.title.subtitle.text.startswith("predicted for NVIDIA H200")


def test_a_phase_has_its_colour_in_every_figure() -> None:
    figure = timelines({"a": fakes.trace(0), "b": fakes.turns()})
    assert all(bars.marker.color == phase_color(bars.name) for bars in figure.data)


def test_a_figure_of_thousands_of_ticks_is_small() -> None:
    assert len(timeline(fakes.trace(0, num_tokens=5000)).to_json()) < 20_000


def test_bars_add_up_to_the_work() -> None:
    decode = next(bars for bars in timeline(fakes.trace(0)).data if bars.name == "decode")
    assert sum(decode.x) == pytest.approx(1.0)


def test_labels_are_shown_as_text() -> None:
    trace = fakes.turns()
    trace.schedules[0] = "<script>alert(1)</script>"
    assert "<script>" not in timeline(trace).layout.title.text


def test_schedules_stand_below_each_other_on_one_axis() -> None:
    figure = timelines({"Serial": fakes.turns(), "Rollplex": fakes.trace(0)})
    assert len(figure.layout.yaxis.tickvals) == len(set(figure.layout.yaxis.tickvals)) == 4
    assert figure.layout.xaxis.range == (0, pytest.approx(1.9))


def test_traces_of_different_devices_each_say_their_own() -> None:
    notes = [note.text for note in timelines({"a": fakes.turns(), "b": fakes.trace(0)}).layout.annotations]
    assert "measured on cpu (2 cores)" in notes[0]
    assert "measured on NVIDIA H200" in notes[1]


def test_no_traces_is_an_error() -> None:
    with pytest.raises(ValueError, match="no trace was given"):
        timelines({})


def test_the_trace_draws_itself() -> None:
    assert timeline(fakes.trace(0)) == fakes.trace(0).timeline()
    with pytest.raises(ValueError, match="no ticks"):
        Trace().timeline()
