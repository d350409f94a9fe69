import sys

import nbformat
import pytest
from nbclient import NotebookClient
from views import fakes

from rollplex.views import watch as watching
from rollplex.views.live import Live, memory_bars, still
from rollplex.views.watch import watch


def make_run(num: int = 3) -> fakes.FakeRun:
    return fakes.FakeRun([fakes.step(i) for i in range(num)], fakes.trace(*range(num)))


def test_steps_pass_through_untouched() -> None:
    run = make_run()
    assert list(watch(run.steps())) == run.made


def test_outside_a_notebook_the_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    list(watch(make_run().steps()))
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 3/3" in err
    assert "reward 0.25" in err


def test_a_break_ends_the_run_and_tells_how_far_it_came(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    for step in watch(run.steps()):
        if step.index == 1:
            break
    assert run.ended
    assert capsys.readouterr().err.splitlines()[-1].startswith("step 2/3")


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_error_in_the_loop_reaches_the_user(error: type[BaseException]) -> None:
    def loop() -> None:
        for _ in watch(make_run().steps()):
            raise error

    with pytest.raises(error):
        loop()


class Broken:
    def __init__(self, num: int) -> None:
        self.problems: list[str] = []

    def progress(self, *_: object) -> None:
        raise ZeroDivisionError("in the view")

    def draw(self, *_: object) -> None: ...

    def finish(self, *_: object) -> None:
        raise ZeroDivisionError("at the end")

    def problem(self, text: str) -> None:
        sys.stderr.write(text)


def test_a_view_that_fails_says_so_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "_Terminal", Broken)
    assert len(list(watch(make_run().steps()))) == 3
    err = capsys.readouterr().err
    assert "the run goes on" in err
    assert "ZeroDivisionError: in the view" in err
    assert "ZeroDivisionError: at the end" in err


def test_drawing_waits_until_it_has_paid_for_itself() -> None:
    throttle = watching._Throttle(every=1)
    assert throttle.due(1)
    throttle.spent(60.0)
    assert not throttle.due(2)


def test_every_counts_steps() -> None:
    throttle = watching._Throttle(every=3)
    assert [throttle.due(done) for done in range(1, 8)] == [True, False, False, True, False, False, True]
    with pytest.raises(ValueError, match="every is 0"):
        watch(make_run().steps(), every=0)


def test_the_box_shows_the_step_it_was_given() -> None:
    live = Live(3)
    live.progress(2, "step 2/3")
    live.draw(fakes.step(1), fakes.trace(0, 1), [0.25, 0.75])
    assert live._bar.value == 2
    for shown in ("Step 1 under Rollplex", "0.75", "policy.weights", "It is 4."):
        assert shown in live._view.value


def test_the_box_shows_its_own_errors_as_text() -> None:
    live = Live(1)
    live.problem("<b>broken</b>")
    assert "&lt;b&gt;broken" in live._problem.value


def test_what_stays_needs_no_javascript_and_is_small() -> None:
    shown = still(fakes.step(0), fakes.trace(0, num_tokens=2000), [0.1, 0.2]).text
    assert "<script" not in shown
    assert "<svg" in shown
    assert len(shown) < 30_000


def test_without_samples_there_are_no_memory_bars() -> None:
    assert memory_bars(fakes.turns(), 0).text == ""


CELL = """
import sys; sys.path.insert(0, "tests")
from views import fakes
from rollplex.views.watch import watch
run = fakes.FakeRun([fakes.step(i) for i in range(3)], fakes.trace(0, 1, 2))
for step in watch(run.steps()):
    if step.index == 1: break
"""


def test_in_a_live_notebook_the_box_becomes_a_still_picture() -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=120).execute()
    outputs = [output for output in notebook.cells[0].outputs if output.output_type == "display_data"]
    assert len(outputs) == 1
    assert "step 2/3" in outputs[0].data["text/html"]
    assert "application/vnd.jupyter.widget-view+json" not in outputs[0].data
    assert len(nbformat.writes(notebook)) < 100_000
