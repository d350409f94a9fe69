"""The checks of ``rollplex verify`` on a few cases: what they compare agrees, and what is wrong is caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.schedules import Rollplex, Serial
from rollplex.verify import cases, engine, schedules, split
from rollplex.verify.check import Check, Control
from rollplex.verify.verify import report


@pytest.fixture(scope="module")
def bench() -> split.Bench:
    return split.Bench.make()


@pytest.mark.parametrize(
    ("case", "group", "tape"),
    [
        ("one image", 1, "keep"),
        ("several images of different sizes", 2, "recompute"),
        ("mixed", 3, "checkpoint"),
        ("text only", 2, "offload"),
    ],
)
def test_the_split_is_exact(bench: split.Bench, case: str, group: int, tape: split.TapePolicy) -> None:
    """Loss and every gradient, KL term included, against the full-sequence forward."""
    batch = cases.prompts(bench.policy, case)
    expected = split.plain_result(bench, batch, group)
    assert all(bool(g.any()) for name, g in expected[1].items() if "language" in name and "k_proj.bias" not in name)
    assert max(split.error(expected, split.split_result(bench, batch, group, tape))) < split.LIMIT


@pytest.mark.parametrize("wrong", ["positions", "detached"])
def test_a_wrong_split_is_caught(bench: split.Bench, wrong: str) -> None:
    """Positions counted from the prompt's length, and a boundary that nothing flows back through."""
    batch = cases.prompts(bench.policy, "mixed")
    expected = split.plain_result(bench, batch, 2)
    given = cases.counted_from_length(batch) if wrong == "positions" else batch
    found = split.split_result(bench, given, 2, "keep", detached=wrong == "detached")
    assert max(split.error(expected, found)) > split.LIMIT


def test_a_gradient_of_the_padding_word_is_caught(bench: split.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' embedding has none for it; responses here contain it."""
    batch = cases.prompts(bench.policy, "one image")
    expected = split.plain_result(bench, batch, 2)
    model = bench.policy.model
    monkeypatch.setattr(bench.policy, "model", replace(model, text=replace(model.text, padding_id=None)))
    assert max(split.error(expected, split.split_result(bench, batch, 2, "keep"))) > split.LIMIT


def test_rollplex_ends_where_serial_does() -> None:
    """Bit for bit in float32, with weights that moved; a generator shared by all phases (the control) is caught."""
    serial, rollplex = (schedules.outcome(schedule, steps=2) for schedule in (Serial(), Rollplex()))
    assert serial.moved > 0
    assert rollplex.distance(serial) == 0
    one, two = (
        schedules.outcome(schedule, generator=torch.Generator().manual_seed(0), steps=2)
        for schedule in (Serial(), Rollplex())
    )
    assert one.distance(two) > 1e-6


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_engine_logprobs_are_those_of_the_model(temperature: float) -> None:
    """In float32, for lengths 1 to 34 in one batch; log-probs of another temperature (the control) are caught."""
    policy, twin = Policy.tiny(), Policy.tiny()
    batch = cases.prompts(policy, "mixed")
    lengths = torch.tensor([[1, 2, 34], [13, 1, 5], [3, 21, 8]])
    rollout = Decode(policy.engine(), group=3, max_new_tokens=34, temperature=temperature, lengths=lengths)(batch)
    assert engine.gap(twin, batch, rollout) < engine.LIMIT
    other = rollout.sampling.__class__(temperature=0.8, banned=rollout.sampling.banned)
    assert engine.gap(twin, batch, rollout, other) > engine.LIMIT


def test_a_gradient_that_should_be_zero_must_be_zero() -> None:
    """Relative to nothing, anything is too much; a missing gradient counts as zero."""
    zero, some = torch.zeros(2), torch.tensor([0.0, 1e-9])
    assert split.error((1.0, {"a": zero}), (1.0, {})) == (0.0, 0.0)
    assert split.error((1.0, {"a": zero}), (1.0, {"a": some}))[1] == float("inf")
    assert split.error((1.0, {"a": some}), (1.0, {}))[1] == pytest.approx(1.0)
    assert split.error((2.0, {}), (1.0, {}))[0] == 0.5


def test_not_a_number_passes_no_check() -> None:
    """A comparison that broke down is not a success."""
    assert not Check("a", "b", float("nan"), 1.0).passed
    assert Check("a", "b", 1.0, 1.0).passed


def test_the_report_names_the_worst_case_and_what_was_missed() -> None:
    """One line a kind of check, one a control."""
    found = [Check("split", "small", 1e-9, 1e-6), Check("split", "large", 1e-3, 1e-6), Check("engine", "x", 0.0, 1.0)]
    lines = report(found, [Control("wrong positions", caught=True), Control("detached", caught=False)]).splitlines()
    assert lines[0].split() == ["FAILED", "split:", "worst", "1.00e-03", "of", "1e-06", "(large;", "2", "cases)"]
    assert lines[1].split()[0] == "ok"
    assert [line.split()[0] for line in lines[2:]] == ["caught", "MISSED"]
