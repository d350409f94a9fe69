"""The boundary: rows taken from it, gradients summed in it, and the way back into the prefix."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import pytest
import torch

from rollplex.boundary import Boundary, PrefixOutput, PrefixState, Tape
from rollplex.prompts import PromptBatch

SHAPE = (3, 2, 5, 4)


def output(dtype: torch.dtype, *, attached: bool = False) -> PrefixOutput:
    def part(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_(attached)

    return PrefixOutput(
        keys=(part(*SHAPE), part(*SHAPE)), values=(part(*SHAPE), part(*SHAPE)), last_hidden=part(3, 6), saved_bytes=7
    )


def boundary(dtype: torch.dtype = torch.float64, *, attached: bool = True, tape: Tape | None = None) -> Boundary:
    made = output(dtype, attached=attached)
    wide = torch.promote_types(dtype, torch.float32)
    return Boundary(
        prompts=(4, 0, 2),
        lengths=torch.tensor([5, 3, 4]),
        next_positions=torch.tensor([5, 3, 4]),
        padded=True,
        output=made,
        tape=tape,
        gradients=tuple(torch.zeros_like(t, dtype=wide) for t in made.tensors) if attached else (),
    )


def run(generator: Generator[str, None, object]) -> list[str]:
    return list(generator)


def test_rows_of_one_prompt_see_its_keys_and_no_padding() -> None:
    """A layer's keys come with the place of each row, and a bias that hides what is behind a prompt's end."""
    made = boundary()
    index = torch.tensor([0, 0, 2])
    layers = made.prompt_keys(index, [2, 0, 1])
    assert len(layers) == 2
    for layer, keys, values in zip(layers, made.output.keys, made.output.values, strict=True):
        assert layer.keys is keys
        assert layer.values is values
        assert layer.bias is not None
        assert layer.bias[:, 0, 0].isfinite().sum(dim=1).tolist() == [5, 4]
        assert layer.gradients is not None
    assert replace(made, padded=False).prompt_keys(index, [2, 0, 1])[0].bias is None
    assert boundary(attached=False).prompt_keys(index, [2, 0, 1])[0].gradients is None


def test_last_hidden_states_are_taken_by_row() -> None:
    """The same values whether gradients are collected or not; siblings' gradients are summed where they are."""
    index = torch.tensor([2, 0, 0])
    for attached in (True, False):
        made = boundary(attached=attached)
        taken = made.last_hidden(index)
        assert torch.equal(taken, made.output.last_hidden[index])
        assert taken.requires_grad is attached
        if attached:
            (taken * torch.tensor([[1.0], [2.0], [3.0]])).sum().backward()
            assert made.gradients[-1][:, 0].tolist() == [5.0, 0.0, 1.0]


def test_gradients_can_be_forgotten() -> None:
    """A suffix that is run again starts from zero."""
    made = boundary()
    made.last_hidden(torch.tensor([0])).sum().backward()
    assert any(bool(g.any()) for g in made.gradients)
    made.zero_gradients()
    assert not any(bool(g.any()) for g in made.gradients)


def tape_of(weight: torch.Tensor, calls: list[str], *, kept: bool) -> Tape:
    """A prefix whose outputs are multiples of one weight."""

    def forward() -> Generator[str, None, PrefixOutput]:
        calls.append("forward")
        yield "layer"
        return PrefixOutput(keys=(weight * 2,), values=(weight * 3,), last_hidden=weight * 4)

    if not kept:
        return Tape(forward)
    outputs = (weight * 2, weight * 3, weight * 4)
    return Tape(forward, outputs, 12)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "recomputed"])
def test_the_way_back_adds_the_seeded_gradient(kept: bool) -> None:
    """The saved graph serves once; later passes run the prefix again, with the same result."""
    weight, calls = torch.ones(1, requires_grad=True), list[str]()
    tape = tape_of(weight, calls, kept=kept)
    seeds = [torch.tensor([1.0]), torch.tensor([10.0]), torch.tensor([100.0])]
    found = []
    for _ in range(2):
        weight.grad = None
        ticks = run(tape.backward(seeds))
        assert weight.grad is not None
        found.append(float(weight.grad))
        assert ticks[-1] == "prefix backward"
        assert tape.nbytes == 0
    assert found == [432.0, 432.0]
    assert len(calls) == (1 if kept else 2)


def test_outputs_without_a_graph_are_left_out() -> None:
    """A frozen part of the prefix needs no gradient and is no error."""
    weight = torch.ones(1, requires_grad=True)
    tape = Tape(lambda: iter(()), (torch.ones(1), weight * 3))  # type: ignore[arg-type,return-value]
    run(tape.backward([torch.ones(1), torch.ones(1)]))
    assert float(weight.grad) == 3  # type: ignore[arg-type]


def test_memory_says_what_is_held_and_by_whom() -> None:
    """Boundary, sums, what first log-probabilities are made of, and graph apart; a frozen model has no sums and graph."""
    tape = tape_of(torch.ones(1, requires_grad=True), [], kept=True)
    state = PrefixState(
        boundaries=(boundary(tape=tape), boundary(tape=tape)), version=0, prompts=PromptBatch(prompts=())
    )
    num, hidden = 2 * 4 * 3 * 2 * 5 * 4 * 8, 2 * 3 * 6 * 8
    assert state.memory("p") == {"p.boundary": num, "p.gradients": num, "p.logprobs": 2 * hidden, "p.tape": 24}
    frozen = PrefixState(boundaries=(boundary(attached=False),), version=0, prompts=PromptBatch(prompts=()))
    assert frozen.memory("r") == {"r.boundary": num // 2, "r.logprobs": hidden // 2}
