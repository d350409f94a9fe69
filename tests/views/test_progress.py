import io

from rollplex.views.progress import Progress


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_line_is_rewritten_in_place() -> None:
    stream = Tty()
    progress = Progress(10, stream)
    for done in range(1, 11):
        progress.show(done, f"step {done}", last=done == 10)
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r") == 10


def test_a_file_gets_few_lines_and_the_last_one() -> None:
    stream = io.StringIO()
    progress = Progress(100, stream)
    for done in range(1, 101):
        progress.show(done, f"step {done}/100", last=done == 100)
    first, last = stream.getvalue().splitlines()
    assert first.startswith("step 1/100")
    assert last.startswith("step 100/100")
    assert "\r" not in stream.getvalue()


def test_a_file_gets_the_last_line_even_where_it_was_told_before_unprinted() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    for done in (1, 2):
        progress.show(done, f"step {done}/2")
    progress.show(2, "step 2/2", last=True)
    assert stream.getvalue().splitlines() == ["step 1/2", "step 2/2"]


def test_a_message_does_not_mix_with_the_line() -> None:
    stream = Tty()
    Progress(2, stream).say("trouble")
    assert stream.getvalue().endswith("trouble\n")
