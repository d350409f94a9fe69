"""An engine's parameters as views of the policy's weights: told by address, refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rollplex.engines.vllm_weights import SharedWeights
from rollplex.model.fuse import Fused
from rollplex.sharing.recorded import Recorder


class Engine(nn.Module):
    """A fused projection, a padded vocabulary tied to a head, and a loader."""

    def __init__(self, padded: int = 8) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 6, bias=False)
        self.embedding = nn.Embedding(padded, 4)
        self.head = nn.Linear(4, padded, bias=False)
        self.head.weight = self.embedding.weight

    def load(self, checkpoint: dict[str, torch.Tensor], order: tuple[str, ...] = ("q", "kv")) -> None:
        start = 0
        for part in order:
            loaded = checkpoint[f"x.{part}.weight"]
            self.qkv.weight.data[start : start + len(loaded)].copy_(loaded)
            start += len(loaded)
        loaded = checkpoint["e.weight"]
        self.embedding.weight.data[: len(loaded)].copy_(loaded)
        self.embedding.weight.data[len(loaded) :].fill_(0)


def policy() -> tuple[Fused, dict[str, torch.Tensor]]:
    """Fused weights, and the checkpoint's names for their parts."""
    fused, owner = Fused(), nn.ModuleDict({"q": nn.Linear(4, 2, bias=False), "kv": nn.Linear(4, 4, bias=False)})
    embedding = nn.Embedding(5, 4)
    fused.fuse("x", owner, ["q", "kv"], "qkv")
    fused.vector("e", embedding)
    return fused, {
        **{f"x.{n}.weight": m.weight.detach() for n, m in owner.items()},
        "e.weight": embedding.weight.detach(),
    }


def shared(engine: Engine, order: tuple[str, ...] = ("q", "kv")) -> tuple[SharedWeights, Fused]:
    fused, checkpoint = policy()
    with Recorder(dict(engine.named_parameters()), checkpoint) as recorder:
        engine.load(checkpoint, order)
    return SharedWeights(engine, fused, recorder.copies), fused


def test_every_parameter_is_the_policys_bytes() -> None:
    """A write through one side is read through the other; the tied head follows; padding rows are left out."""
    engine = Engine()
    weights, fused = shared(engine)
    assert weights.share == 0
    weights.bind()
    assert weights.share == 1
    fused.leaves["x.qkv.weight"][3] = 7.0
    assert bool((engine.qkv.weight[3] == 7).all())
    assert engine.head.weight is engine.embedding.weight
    assert engine.embedding.weight.shape == (5, 4)


def test_an_unloaded_engine_has_no_bytes_of_its_own() -> None:
    """And can still be bound."""
    engine = Engine()
    weights, _ = shared(engine)
    weights.unload()
    assert all(parameter.is_meta for parameter in engine.parameters())
    assert engine.head.weight is engine.embedding.weight
    weights.bind()
    assert weights.share == 1


def test_parts_in_another_order_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"engine's qkv\.weight: its parts lie in another order than in the policy's x\.qkv"
    ):
        shared(Engine(), order=("kv", "q"))


def test_what_does_not_match_is_listed_from_both_sides() -> None:
    """Nothing was copied at all: nobody fills the engine's, nobody reads the policy's."""
    fused, _ = policy()
    with pytest.raises(
        ValueError, match="2 parameters of the engine and 2 weights of the policy, 4 do not fit"
    ) as caught:
        SharedWeights(Engine(), fused, [])
    for name in ("engine's qkv.weight", "engine's embedding.weight", "policy's x.qkv.weight", "policy's e.weight"):
        assert name in str(caught.value)


def test_an_engine_of_another_type_is_refused() -> None:
    engine = Engine().double()
    with pytest.raises(ValueError, match="its loader copied nothing into it"):
        shared(engine)


def replaced(engine: Engine, fused: Fused) -> None:
    engine.qkv.weight = nn.Parameter(torch.zeros(6, 4))


def swapped(engine: Engine, fused: Fused) -> None:
    engine.qkv.weight.data = engine.qkv.weight.data.clone()


def cast(engine: Engine, fused: Fused) -> None:
    engine.double()


def moved(engine: Engine, fused: Fused) -> None:
    fused.leaves["x.qkv.weight"] = fused.leaves["x.qkv.weight"].clone()


def shrunk(engine: Engine, fused: Fused) -> None:
    fused.leaves["x.qkv.weight"] = fused.leaves["x.qkv.weight"][:4]


@pytest.mark.parametrize("change", [replaced, swapped, cast, moved, shrunk])
def test_bytes_that_are_no_longer_one_are_noticed(change: object) -> None:
    """On whichever side it happened, with the names of both."""
    engine = Engine()
    weights, fused = shared(engine)
    weights.bind()
    weights.check()
    change(engine, fused)  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=r"engine's qkv\.weight is .* policy's x\.qkv\.weight is"):
        weights.check()
