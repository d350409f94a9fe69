import re
from html.parser import HTMLParser
from pathlib import Path

from views import fakes

from rollplex.views import report as reports
from rollplex.views.report import Section, figures, groups, page, report
from rollplex.views.rewards import rewards
from rollplex.views.svg import timeline_svg
from rollplex.views.timeline import timeline


def sections() -> list[Section]:
    return [
        reports.table("Results", [{"seed": "0", "accuracy": 0.5, "note": None}]),
        figures("Reward", rewards({"seed 0": [0.0, 1.0]}), timeline(fakes.trace(0)), caption="measured <here>"),
        groups("Rollouts", [fakes.step()]),
    ]


class Balance(HTMLParser):
    VOID = frozenset({"meta", "img", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    text = report(tmp_path / "out" / "report.html", title="Demo", sections=sections()).read_text()
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert all(address.startswith(("#", "data:")) for address in parser.addresses)
    assert parser.addresses


def test_plotly_is_written_once_and_only_if_needed() -> None:
    marker = "plotly.js v"
    assert page(title="Demo", sections=sections()).count(marker) == 1
    assert marker not in page(title="Demo", sections=[figures("Still", timeline_svg(fakes.trace(0)))])


def test_the_same_run_gives_the_same_file() -> None:
    assert page(title="Demo", sections=sections()) == page(title="Demo", sections=sections())


def test_figures_have_ids_of_their_own() -> None:
    ids = re.findall(r'<div id="(figure-\d+)"', page(title="Demo", sections=sections()))
    assert ids == ["figure-1", "figure-2"]


def test_texts_are_escaped_also_inside_figures() -> None:
    trace = fakes.turns()
    trace.device = "</script><script>alert(1)</script>"
    shown = page(title="<title>", sections=[figures("<h>", timeline(trace), caption="<c>")])
    assert "alert(1)</script>" not in shown
    assert "&lt;c&gt;" in shown


def test_a_missing_cell_is_a_dash() -> None:
    shown = reports.table("Results", [{"a": 1.0}, {"b": True}]).contents[0]
    assert str(shown).count("–") == 2
