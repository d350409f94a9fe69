"""The command line: a table of commands, each of which is a call of one public function.

It knows words, options and exit codes. What a command does, prints and returns belongs to its function, and so do
the defaults of the options: only what was typed is passed on.

Exit codes: 0 done, 1 a check did not pass, 2 bad input, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any


def _names(text: str) -> tuple[str, ...]:
    """A comma-separated list: ``torch,vllm``."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


@dataclass(frozen=True)
class Option:
    """One ``--name VALUE`` of a command, passed on as the keyword of that name."""

    name: str
    """Name without dashes; the keyword of the function."""
    type: Callable[[str], Any]
    """Makes the value from the text."""
    help: str
    """One line for ``--help``."""

    @property
    def flag(self) -> str:
        """As it is typed: ``--train-tp`` for ``train_tp``."""
        return f"--{self.name.replace('_', '-')}"


@dataclass(frozen=True)
class Command:
    """Words that call a function."""

    words: str
    """What is typed, e.g. ``"bench peers"``."""
    calls: str
    """``module:function``; returns a plain dict."""
    help: str
    """One line for ``--help``."""
    options: tuple[Option, ...] = ()
    """Options of its own; ``--json`` and ``--traceback`` come with every command."""

    def run(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Import the function and call it with what was typed."""
        module, function = self.calls.split(":")
        return getattr(import_module(module), function)(**arguments)


SEEDS = Option("seeds", int, "how many seeds to train, from 0")
STEPS = Option("steps", int, "training steps of each run")
COMPARED = Option("compared", int, "steps that are also run with everything resident")
HIDDEN = Option("hidden", int, "width of the model, a multiple of 64")
CHUNK = Option("chunk_bytes", int, "bytes of a chunk of the streamed optimizer")
SCHEDULE = Option("schedule", str, "class name of the schedule, e.g. Serial or Rollplex")
OUT = Option("out", Path, "folder for the report and the trace")
PAIRS = Option("pairs", int, "pairs of fresh processes, ours and theirs in turn")
ENGINES = Option("engines", _names, "engines to measure, e.g. torch,vllm,generate")
MODEL = Option("model", str, "a published model, e.g. Qwen2.5-VL-32B")
TRAIN_TP = Option("train_tp", int, "training ranks that divide a parameter")
ROLLOUT_TP = Option("rollout_tp", int, "rollout ranks that divide a parameter")
ASSUME = Option("assume", _names, "switch assumptions on: sharded-optimizer,recompute,deduplicated,...")
TRAINER = Option("trainer", str, "whose layouts: megatron or torch")
REPEATS = Option("repeats", int, "measured steps of each schedule on each workload")
DEVICE = Option("device", str, "kind of device, e.g. H800")
NODES = Option("nodes", int, "nodes of eight devices")
PROMPT = Option("prompt_tokens", int, "median tokens of a prompt")
RESPONSE = Option("response_tokens", int, "median tokens of a response")
PARTS = Option("parts", _names, "language (the default), vision or both")

GROUPS = {
    "bench": "measure, always as ratios within one run",
    "plan": "work out from shapes and costs, without a device",
}
"""First words that are no command of their own -> one line for ``--help``."""

COMMANDS = (
    Command("demo", "rollplex.demo:demo", "train the tiny model and report", (SEEDS, STEPS, SCHEDULE, OUT)),
    Command("verify", "rollplex.verify:verify", "prove that splitting and overlapping change no number"),
    Command("bench peers", "rollplex.bench.peers:bench", "a training step against TRL's GRPOTrainer", (PAIRS,)),
    Command("bench schedules", "rollplex.bench.schedules:bench", "the schedules against each other and the floor"),
    Command("bench decode", "rollplex.bench.decode:bench", "the engines against transformers' generate", (ENGINES,)),
    Command("bench overhead", "rollplex.bench.overhead:bench", "what ticks and tracing cost"),
    Command(
        "bench memory",
        "rollplex.bench.memory:bench",
        "a budget that the full system fits, and what breaks it",
        (STEPS, COMPARED, HIDDEN, CHUNK),
    ),
    Command(
        "plan footprint",
        "rollplex.memory.plan:plan",
        "what a step weighs on one device, naive and managed",
        (MODEL, TRAIN_TP, ROLLOUT_TP, ASSUME),
    ),
    Command(
        "plan layouts",
        "rollplex.sharing.plan:layouts",
        "which parameters trainer and engine can hold as one copy",
        (MODEL, TRAIN_TP, ROLLOUT_TP, TRAINER, PARTS),
    ),
    Command(
        "plan simulate",
        "rollplex.presets.table:simulate_all",
        "every schedule and published system on one workload and cluster",
        (MODEL, DEVICE, NODES, PROMPT, RESPONSE),
    ),
    Command(
        "plan check", "rollplex.costs.check:check", "simulated against measured steps, on this machine", (REPEATS,)
    ),
    Command("plan paper", "rollplex.paper.report:paper", "the paper's evaluation, computed, beside its own numbers"),
    Command("doctor", "rollplex.doctor:doctor", "what works on this machine, and why not"),
)


def main(argv: Sequence[str] | None = None, *, commands: Sequence[Command] = COMMANDS) -> int:
    """Run a command line (by default, the process's own); returns the exit code.

    >>> main(["doctor", "--json", "/no/such/folder/doctor.json"])
    2
    """
    try:
        try:
            return _main(argv, commands)
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be told from a bug
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        # `| head` has read enough. What is left in the buffer must go somewhere, or Python complains when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # as a shell reports a command that the closed pipe has ended


def _nobody_reads() -> bool:
    """Whether stdout is a pipe whose other end was closed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _main(argv: Sequence[str] | None, commands: Sequence[Command]) -> int:
    arguments = vars(parser(commands).parse_args(argv))
    command: Command = arguments.pop("command")
    json_path: Path | None = arguments.pop("json")
    traceback: bool = arguments.pop("traceback")
    try:
        return _run(command, arguments, json_path)
    except KeyboardInterrupt:
        print(f"rollplex {command.words}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except (ValueError, RuntimeError, ImportError, OSError) as error:
        if traceback or not _meant_for_the_user(error):
            raise
        print(f"rollplex {command.words}: {error}\n(--traceback shows where)", file=sys.stderr)
        return 2


def parser(commands: Sequence[Command]) -> argparse.ArgumentParser:
    """The argument parser of a table of commands."""
    top = argparse.ArgumentParser(prog="rollplex", description="How RL of vision-language models is scheduled.")
    top.add_argument("--version", action=_Version)
    levels = {"": top.add_subparsers(required=True, metavar="COMMAND")}
    for command in commands:
        group, _, word = command.words.rpartition(" ")
        if group not in levels:
            parent = levels[""].add_parser(group, help=GROUPS[group])
            levels[group] = parent.add_subparsers(required=True, metavar="WHAT")
        leaf = levels[group].add_parser(word, help=command.help, description=command.help)
        for option in command.options:
            # SUPPRESS: what was not typed is not passed on, so that the function's own default holds.
            leaf.add_argument(option.flag, type=option.type, help=option.help, default=argparse.SUPPRESS)
        leaf.add_argument(
            "--json", nargs="?", const=Path("-"), type=Path, metavar="FILE", help="write the result; no FILE: to stdout"
        )
        leaf.add_argument("--traceback", action="store_true", help="show where an error came from")
        leaf.set_defaults(command=command)
    return top


class _Version(argparse.Action):
    """Print the version: an action of its own, since reading the metadata is wasted on every other command."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import rollplex

        print(f"rollplex {rollplex.__version__}")
        parser.exit()


def _run(command: Command, arguments: Mapping[str, Any], json_path: Path | None) -> int:
    """Call the function and write its result; 1 if the result says that something did not pass."""
    from rollplex import json_out

    to_stdout = json_path == Path("-")
    if json_path is not None and not to_stdout:
        json_out.expect_writable(json_path)
    with redirect_stdout(sys.stderr if to_stdout else sys.stdout):  # tables make way for the JSON
        result = command.run(arguments)
    if to_stdout:
        sys.stdout.write(json_out.dumps(json_out.envelope(command.words, result)))
    elif json_path is not None:
        json_out.write(json_path, json_out.envelope(command.words, result))
        print(f"wrote {json_path}")
    return 0 if result.get("passed", True) else 1


def _meant_for_the_user(error: Exception) -> bool:
    """Whether an error speaks to the user: the system's, or one that this package itself raised on purpose."""
    if isinstance(error, OSError):
        return True
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and Path(__file__).parent in Path(frame.tb_frame.f_code.co_filename).parents
