"""Prefix: the prompt part of a model, and what it keeps until the suffix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_policy import gap, gradients, prompts, responses, tiny, train

from rollplex.boundary import PrefixState
from rollplex.memory.pool import HostPool
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.policy import Reference
from rollplex.resource import Resource

BATCH = prompts("mixed")


def outputs(state: PrefixState) -> dict[int, list[torch.Tensor]]:
    """Prompt -> its own part of every boundary tensor, padding left out."""
    found = {}
    for boundary in state.boundaries:
        for row, (prompt, length) in enumerate(zip(boundary.prompts, boundary.lengths.tolist(), strict=True)):
            parts = [t[row, :, :length] for t in (*boundary.output.keys, *boundary.output.values)]
            found[prompt] = [*parts, boundary.output.last_hidden[row]]
    return found


def test_a_prompt_does_not_depend_on_its_company() -> None:
    """Padded together or run one by one, each prompt leaves the same behind."""
    policy = tiny()
    together, alone = (outputs(Prefix(policy, microbatch_tokens=n)(BATCH)) for n in (8192, 1))
    assert together.keys() == alone.keys() == {0, 1, 2}
    for prompt in together:
        for one, two in zip(together[prompt], alone[prompt], strict=True):
            assert torch.allclose(one, two, atol=1e-12)


@pytest.mark.parametrize("tape", ["offload", "recompute", "checkpoint"])
@pytest.mark.parametrize("tokens", [8192, 1], ids=["one boundary", "a boundary a prompt"])
def test_what_is_kept_changes_no_gradient(tape: Any, tokens: int) -> None:
    """Kept, dropped or kept in part: the gradients are the same."""
    policy = tiny()
    made = responses(policy, BATCH)
    kept = train(policy, BATCH, *made, prefix={"microbatch_tokens": tokens})[1]
    pool = HostPool(128 * 2**20)
    other = train(policy, BATCH, *made, prefix={"microbatch_tokens": tokens, "tape": tape, "pool": pool})[1]
    assert gap(kept, other) < 1e-10
    assert pool.free_bytes == pool.nbytes


def test_what_is_kept_says_how_much() -> None:
    """A kept graph is larger than checkpoints, which are larger than nothing, and a spent graph is nothing."""
    policy = tiny()
    states = {tape: Prefix(policy, tape=tape)(BATCH) for tape in ("keep", "checkpoint", "recompute")}  # type: ignore[arg-type]
    sizes = {tape: state.memory("p").get("p.tape", 0) for tape, state in states.items()}
    assert sizes["keep"] > sizes["checkpoint"] > sizes["recompute"] == 0
    Suffix(policy)(BATCH, states["keep"], *responses(policy, BATCH))
    assert "p.tape" not in states["keep"].memory("p")


def test_an_offloaded_graph_is_in_the_pool_but_for_crumbs() -> None:
    """All of what a kept one has on the device, and neither weights nor keys and values of the boundary."""
    policy, pool = tiny(), HostPool(128 * 2**20)
    kept = Prefix(policy)(BATCH).memory("p")["p.tape"]
    state = Prefix(policy, tape="offload", pool=pool)(BATCH)
    assert state.memory("p").get("p.tape", 0) < 0.01 * kept
    assert 0.99 * kept < pool.owners()["policy.tape"] < 1.1 * kept
    boundary = Resource("boundary", tuple(t for b in state.boundaries for t in b.output.tensors))
    assert boundary.nbytes == state.nbytes


def test_offloading_without_a_pool_is_refused() -> None:
    """The message says where to get one."""
    with pytest.raises(ValueError, match=r"no host memory .*pool=HostPool"):
        Prefix(tiny(), tape="offload")(BATCH)


def test_a_spent_prefix_is_refused() -> None:
    """Its memory was given back."""
    policy = tiny()
    spent = Prefix(policy)(BATCH).spent()
    assert (spent.nbytes, spent.version) == (0, 0)
    with pytest.raises(ValueError, match="freed after their suffix"):
        Suffix(policy)(BATCH, spent, *responses(policy, BATCH))


def test_a_boundary_holds_no_more_than_it_says() -> None:
    """Its tensors are storages of their own size, not views that keep whole projections alive."""
    policy = tiny()
    for owner in (policy, Reference(policy)):
        state = Prefix(owner)(BATCH)
        tensors = [t for boundary in state.boundaries for t in boundary.output.tensors]
        assert Resource("boundary", tuple(tensors)).nbytes == state.nbytes


def test_the_reference_leaves_no_graph_behind() -> None:
    """No tape, no sums, nothing that requires a gradient; the policy's boundary has all three."""
    policy = tiny()
    for owner, attached in ((policy, True), (Reference(policy), False)):
        for boundary in Prefix(owner)(BATCH).boundaries:
            assert (boundary.tape is not None) is attached
            assert bool(boundary.gradients) is attached
            assert all(t.requires_grad is attached for t in boundary.output.tensors)


def test_it_takes_no_gradient_of_its_own() -> None:
    """Before a suffix nothing flows."""
    policy = tiny()
    Prefix(policy)(BATCH)
    assert not any(bool(g.any()) for g in gradients(policy).values())


def test_a_tick_is_a_layer() -> None:
    """Embedding and each layer, for each microbatch: pieces that a schedule can interleave."""
    policy = tiny()
    ticks = list(Prefix(policy).run(BATCH))
    assert ticks == ["vision and embedding", *(f"layer {i}" for i in range(len(policy.model.text.layers)))]
    assert len(list(Prefix(policy, microbatch_tokens=1).run(BATCH))) == 3 * len(ticks)


@pytest.mark.parametrize("attached", [True, False], ids=["policy", "reference"])
def test_autograd_is_on_between_ticks(attached: bool) -> None:
    """Whoever has the next turn finds the thread's mode as it was."""
    policy = tiny()
    for _ in Prefix(policy if attached else Reference(policy)).run(BATCH):
        assert torch.is_grad_enabled()
        x = torch.ones(1, requires_grad=True)
        (x * 2).backward()


def test_it_carries_version_and_step() -> None:
    """Whoever uses it can tell whether it is of these weights."""
    policy = tiny()
    policy.version = 5
    state = Prefix(policy)(prompts("text only", step=3))
    assert (state.version, state.step) == (5, 3)


def test_an_unknown_tape_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(ValueError, match=r"tape is 'none'; it must be one of .*'recompute'"):
        Prefix(tiny(), tape="none")  # type: ignore[arg-type]
