"""The bench of engines: the same work for each, and rows that say what was measured. No time is held to anything."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_workloads import SMALL, WORKLOADS
from vllm_rollouts import NEEDS_VLLM

from rollplex.bench import decode
from rollplex.policy import Policy


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(decode, "WORKLOADS", WORKLOADS)
    return decode.bench(engines=("torch",), batches=(2, 4), repeats=1)


def test_a_row_is_an_engine_a_workload_and_a_batch(found: dict[str, Any]) -> None:
    """generate is always measured beside them, and shown where it is asked for."""
    assert [(r["engine"], r["workload"], r["batch"]) for r in found["rows"]] == [("torch", "small", n) for n in (2, 4)]
    assert all(row["tokens_per_s"] > 0 and row["ratio_to_generate"] > 0 for row in found["rows"])
    assert found["threads"] == torch.get_num_threads()


def test_generate_is_one_times_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is to the same round's own time."""
    monkeypatch.setattr(decode, "WORKLOADS", WORKLOADS)
    (row,) = decode.bench(engines=("generate",), batches=(2,), repeats=1)["rows"]
    assert row["ratio_to_generate"] == 1.0


def test_an_unknown_engine_is_named() -> None:
    """With the ones that there are."""
    with pytest.raises(ValueError, match="no engine is called fast; there are torch, generate"):
        decode.bench(engines=("fast",))


def test_engines_are_compared_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With vLLM measured, every row has its ratio to vLLM; here the built-in engine stands in for it."""
    monkeypatch.setattr(decode, "WORKLOADS", WORKLOADS)
    monkeypatch.setitem(decode.ENGINES, "vllm", decode.torch_engine)
    rows = decode.bench(engines=("torch", "vllm"), batches=(2,), repeats=1)["rows"]
    assert [row["engine"] for row in rows] == ["torch", "vllm"]
    assert rows[1]["ratio_to_vllm"] == 1.0
    assert rows[0]["ratio_to_vllm"] > 0


@pytest.mark.parametrize("name", ["torch", "generate", pytest.param("vllm", marks=NEEDS_VLLM)])
def test_every_engine_makes_the_tokens_that_are_counted(name: str) -> None:
    """Forced lengths, none a visual placeholder."""
    policy = Policy.tiny()
    prompts = policy.ingest.batch(SMALL.task.rows(2))
    lengths = torch.full((2, 3), 4)
    with decode.ENGINES[name](policy) as side:
        made: Any = side(prompts, lengths)()
    if name == "generate":
        tokens = made[:, max(p.length for p in prompts) :]
    else:
        assert all(torch.equal(group.lengths, torch.full((3,), 4)) for group in made.groups)
        tokens = torch.cat([group.tokens for group in made.groups])
    assert tokens.shape == (6, 4)
    assert not bool(torch.isin(tokens, torch.tensor(policy.model.placeholder_ids)).any())
