import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from views import fakes

from rollplex.views.svg import curve_svg, timeline_svg, timelines_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_a_timeline_is_well_formed_and_its_bars_are_to_scale() -> None:
    root = ET.fromstring(timeline_svg(fakes.trace(0)).text)
    widths = {r.findtext(f"{SVG}title", "").split(":")[0]: float(r.get("width", 0)) for r in root.iter(f"{SVG}rect")}
    assert widths["decode"] / widths["update"] == pytest.approx(1.0 / 0.2, rel=1e-2)


def test_names_are_escaped() -> None:
    trace = fakes.turns()
    trace.schedules[0] = "a <b> & c"
    assert "a <b> & c" in "".join(ET.fromstring(timeline_svg(trace).text).itertext())


def test_thousands_of_ticks_make_a_small_file(tmp_path: Path) -> None:
    shown = timelines_svg({"a": fakes.trace(0, num_tokens=5000), "b": fakes.turns()})
    assert shown.save(tmp_path / "timeline.svg").stat().st_size < 20_000


@pytest.mark.parametrize("values", [[], [float("nan")], [0.5], [1.0, 1.0], [0.0, float("nan"), 1.0]])
def test_any_curve_can_be_drawn(values: list[float]) -> None:
    text = curve_svg(values, label="reward").text
    ET.fromstring(text)
    assert "nan" not in text
