"""The bench of residency, on a model of two million weights: no time is held to anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_workloads import SMALL

from rollplex.bench import memory
from rollplex.bench.scaled import scaled_policy
from rollplex.memory.memory import Memory
from rollplex.memory.predicted import predicted
from rollplex.schedules import Serial

OPTIONS: dict[str, Any] = {
    "hidden": 128,
    "prompts": 2,
    "group": 6,
    "max_new_tokens": 32,
    "chunk_bytes": 2**18,
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "DEFAULT", SMALL)
        return memory.bench(steps=3, compared=2, **OPTIONS)


def test_the_full_system_fits_its_budget_without_growth(found: dict[str, Any]) -> None:
    """And ends as everything resident does."""
    assert found["measured_peak_bytes"] <= found["budget_bytes"] < 0.8 * found["state_bytes"]
    assert found["growth_bytes"] == 0
    assert found["max_weight_difference"] == 0
    assert len(found["residency_proven"]) == 10


def test_the_measured_peak_is_the_predicted_one(found: dict[str, Any]) -> None:
    """From shapes and settings alone."""
    assert found["peak_ratio"] == pytest.approx(1, abs=0.01)


def test_each_ablation_breaks_where_the_contracts_say(found: dict[str, Any]) -> None:
    """No offload in the first stage; the others in the stage that needs what they keep."""
    assert {row["name"]: (row["predicted_stage"], row["stage"]) for row in found["ablations"]} == {
        "no state offload": ("P1", "P1"),
        "rollout KV kept": ("P2", "P2"),
        "optimizer not chunked": ("P3", "P3"),
        "weights not shared": ("P2", "P2"),
    }


def test_a_roomy_budget_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the test above."""
    monkeypatch.setattr(memory, "DEFAULT", SMALL)
    size = memory.Size(**OPTIONS)
    for case in memory.ABLATIONS:
        row = memory._ablation(size, case, 256 * 2**20)
        assert (row["stage"], row["predicted_stage"]) == (None, None)


@pytest.mark.parametrize("case", [memory.FULL, *memory.ABLATIONS], ids=lambda case: case.name)
def test_every_stage_is_predicted(case: memory.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """P2 and P3 within a percent; P1, whose fullest moment a schedule moves, at most as much as predicted."""
    monkeypatch.setattr(memory, "DEFAULT", SMALL)
    size, policy = memory.Size(**OPTIONS), scaled_policy(128)
    phases = size.phases(policy, case)
    roomy = Memory(budget_bytes=2**28, pool_bytes=2**28, release_rollout=case.release_rollout)
    run = size.run(phases, roomy)
    run.schedule = Serial()
    run.step()
    stages = {"P1": ("decode", "prefix(reference)", "prefix(policy)"), "P2": ("suffix",), "P3": ("update",)}
    for peak in predicted(phases, policy.prompts(SMALL.task.rows(2)), release_rollout=case.release_rollout):
        ticks = [tick for tick in run.trace.ticks if tick.phase in stages[peak.stage]]
        first, last = min(t.start_s for t in ticks), max(t.end_s for t in ticks)
        before = max(s.time_s for s in run.trace.samples if s.time_s <= first)  # which holds as the first tick begins
        samples = [s for s in run.trace.samples if before <= s.time_s <= last]
        measured = max(sum(num for owner, num in s.owners.items() if owner != "rollout") for s in samples)
        if peak.stage == "P1":
            assert measured <= peak.gib * 2**30 * 1.01
        else:
            assert measured == pytest.approx(peak.gib * 2**30, rel=0.02)


def test_a_scaled_model_is_the_same_for_a_seed() -> None:
    """And leaves the caller's random numbers alone."""
    before = torch.random.get_rng_state()
    one, two, other = scaled_policy(64), scaled_policy(64), scaled_policy(64, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = [zip(one.weights.tensors, p.weights.tensors, strict=True) for p in (two, other)]
    assert [all(torch.equal(a, b) for a, b in pair) for pair in pairs] == [True, False]


def test_a_width_that_no_heads_fill_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden is 100; it must be a multiple of 64"):
        scaled_policy(100)


def test_more_compared_than_run_is_refused() -> None:
    with pytest.raises(ValueError, match="compared is 5; it must be between 2 and steps, which is 3"):
        memory.bench(steps=3, compared=5)
