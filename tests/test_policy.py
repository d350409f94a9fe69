"""The policy's storages: one copy of every weight, whoever reads it, and a directory that others load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_policy import checksum, gap, moved, phases, prompts, responses, shift, task, tiny, train
from transformers import AutoModelForImageTextToText, Qwen2_5_VLForConditionalGeneration

from rollplex.ingest import Ingest
from rollplex.model.model import Model
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import TINY, Policy, Reference, StaleError
from rollplex.run import Run
from rollplex.schedules import Rollplex
from rollplex.verify import plain


def untied() -> Policy:
    """A smaller one with a head of its own, made on the spot."""
    config: Any = tiny().model.module.config.__class__.from_pretrained(TINY)
    config.tie_word_embeddings = False
    config.text_config.tie_word_embeddings = False
    config.text_config.num_hidden_layers = 2
    config.text_config.layer_types = ["full_attention"] * 2
    torch.manual_seed(0)
    module = Qwen2_5_VLForConditionalGeneration(config).double()
    plain.widen(module)
    module.generation_config.eos_token_id = [2, 0]  # type: ignore[union-attr]
    return Policy(Model.of(module), Ingest.from_pretrained(TINY, config))


makers = pytest.mark.parametrize("make", [tiny, untied], ids=["tied", "untied"])


@makers
def test_parameters_of_the_module_lie_in_the_fused_storages(make: Any) -> None:
    """Each of transformers' parameters is a block of rows of one leaf, at its address."""
    model = make().model
    named = dict(model.module.named_parameters())
    assert named.keys() == model.fused.places.keys()
    for name, parameter in named.items():
        leaf, rows = model.fused.places[name]
        assert parameter.data_ptr() == model.leaves[leaf][rows].data_ptr()
        assert parameter.shape == model.leaves[leaf][rows].shape


@makers
def test_the_blocks_of_a_leaf_fill_it(make: Any) -> None:
    """No byte of a fused weight is unused or used twice."""
    policy = make()
    for name, leaf in policy.model.leaves.items():
        blocks = sorted((r.start, r.stop) for n, r in policy.model.fused.places.values() if n == name)
        assert [stop for _, stop in blocks] == [*(start for start, _ in blocks[1:]), len(leaf)]
    # A fused storage is nobody else's, so bytes can be counted by leaf.
    assert policy.weights.nbytes == sum(leaf.nbytes for leaf in policy.model.leaves.values())


def test_tied_embeddings_are_one_weight() -> None:
    """The head is the embedding itself, in the module and in the lean forward."""
    model = tiny().model
    module: Any = model.module
    assert module.lm_head.weight is module.get_input_embeddings().weight
    assert model.text.head.weight is model.text.embedding


def test_untied_embeddings_are_two_weights() -> None:
    """Training one leaves the other alone."""
    model = untied().model
    assert model.text.head.weight.data_ptr() != model.text.embedding.data_ptr()
    assert {"lm_head.weight", "model.language_model.embed_tokens.weight"} <= model.leaves.keys()


@makers
def test_loss_and_gradients_are_those_of_the_full_forward(make: Any) -> None:
    """Every parameter's, against transformers' module on the same weights, one response at a time."""
    policy = make()
    batch = prompts("mixed")
    rollout, rewards = responses(policy, batch, 2)
    stats, found = train(policy, batch, rollout, rewards)
    policy.zero_gradients()
    advantages = list(stats.advantages)
    module = policy.model.module
    loss = plain.loss(module, module, batch, rollout.groups, advantages, beta=0.0)
    assert stats.loss == pytest.approx(loss, rel=1e-9, abs=1e-12)
    expected = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    assert gap(expected, found) < 1e-9


def test_gradients_of_the_module_lie_in_the_fused_gradients() -> None:
    """transformers' own backward and the split one fill the same buffers."""
    policy = tiny()
    for name, parameter in policy.model.module.named_parameters():
        leaf, rows = policy.model.fused.places[name]
        assert parameter.grad is not None
        assert parameter.grad.data_ptr() == policy.model.leaves[leaf].grad[rows].data_ptr()  # type: ignore[index]


def test_zero_gradients_keeps_the_buffers() -> None:
    """Addresses stay, values go."""
    policy = tiny()
    train(policy, prompts(), *responses(policy, prompts()))
    addresses = [g.data_ptr() for g in policy.gradients.tensors]
    assert any(bool(g.any()) for g in policy.gradients.tensors)
    policy.zero_gradients()
    assert not any(bool(g.any()) for g in policy.gradients.tensors)
    assert [g.data_ptr() for g in policy.gradients.tensors] == addresses


def test_gradients_set_to_none_from_outside_are_noticed() -> None:
    """The message says what to call instead."""
    policy = tiny()
    next(iter(policy.model.leaves.values())).grad = None
    with pytest.raises(RuntimeError, match=r"Use policy\.zero_gradients\(\)"):
        policy.zero_gradients()


def test_the_engine_copies_nothing() -> None:
    """Its weights are the policy's storages, all of them, and it holds no byte before it has decoded."""
    policy = tiny()
    engine = policy.engine()
    assert engine.weights.storages() == policy.weights.storages()
    assert engine.held() == {}


@makers
def test_what_is_saved_is_what_transformers_loads(make: Any, tmp_path: Path) -> None:
    """The same parameters by name and value, the same logits, and the same policy again."""
    policy = shift(make())
    policy.save_pretrained(tmp_path)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, dtype=torch.float64)
    plain.widen(loaded)
    expected = dict(policy.model.module.named_parameters())
    assert dict(loaded.named_parameters()).keys() == expected.keys()
    assert all(torch.equal(parameter, expected[name]) for name, parameter in loaded.named_parameters())
    prompt = prompts()[1]
    tokens = torch.tensor([9, 8, 7])
    sampling = responses(policy, prompts())[0].sampling
    with torch.no_grad():
        one, two = (plain.logprobs(m, prompt, tokens, sampling) for m in (policy.model.module, loaded.eval()))
    assert torch.equal(one, two)
    again = Policy.from_pretrained(tmp_path, dtype=torch.float64)
    assert again.model.eos_ids == policy.model.eos_ids
    assert all(torch.equal(leaf, again.model.leaves[name]) for name, leaf in policy.model.leaves.items())
    assert again.prompts([prompt.row])[0].input_ids.tolist() == prompt.input_ids.tolist()


def test_a_trained_policy_is_saved_as_trained(tmp_path: Path) -> None:
    """The update writes where ``save_pretrained`` reads."""
    policy = tiny()
    before = policy.snapshot()
    Run(task(), phases(policy), prompts=2).step()
    assert moved(policy, before) > 0
    again = Policy.from_pretrained(policy.save_pretrained(tmp_path), dtype=torch.float64)
    assert moved(again, policy.snapshot()) == 0


def test_a_snapshot_is_a_copy_and_restores_in_place() -> None:
    """Values, version and addresses come back."""
    policy = tiny()
    before, addresses = policy.snapshot(), policy.weights.storages()
    shift(policy)
    policy.version = 3
    assert moved(policy, before) > 0
    policy.restore(before, version=1)
    assert moved(policy, before) == 0
    assert (policy.version, policy.weights.storages()) == (1, addresses)


def test_another_version_is_refused() -> None:
    """The message names both versions and what to do."""
    policy = tiny()
    policy.version = 2
    policy.expect(2, "prefix")
    with pytest.raises(StaleError, match=r"prefix of weight version 1: the policy is at version 2\. Make a new prefix"):
        policy.expect(1, "prefix")


def test_the_reference_is_a_frozen_copy() -> None:
    """It shares no byte, takes no gradient, and stays where it was when the policy moves on."""
    policy = tiny()
    reference = Reference(policy)
    before = [t.clone() for t in reference.weights.tensors]
    assert not reference.weights.overlaps(policy.weights)
    assert not any(t.requires_grad for t in reference.weights.tensors)
    assert all(p.grad is None and not p.requires_grad for p in reference.model.module.parameters())
    shift(policy)
    assert all(torch.equal(a, b) for a, b in zip(reference.weights.tensors, before, strict=True))


def test_a_step_runs_in_bfloat16() -> None:
    """The whole step on narrow weights: they move, gradients are finite, engine and trainer nearly agree."""
    policy = tiny(torch.bfloat16)
    before = policy.snapshot()
    step = Run(task(), phases(policy, lr=1e-2), Rollplex(), prompts=2).step()
    assert step.suffix is not None
    assert step.update is not None
    assert moved(policy, before) > 0
    assert all(bool(g.isfinite().all()) for g in policy.gradients.tensors)
    assert step.suffix.mismatch_mean < 0.05
    assert {t.dtype for t in policy.weights.tensors} == {torch.bfloat16}


def test_a_row_becomes_a_prompt_of_this_model() -> None:
    """The short way from a task's rows, with provenance."""
    batch = tiny().prompts(task().rows(2), step=3, seed=4)
    assert (len(batch), batch.step, batch.seed) == (2, 3, 4)


def test_it_says_what_it_is_in_a_line() -> None:
    """Size, type, device and version."""
    policy = tiny()
    num = policy.model.module.num_parameters()
    assert repr(policy) == f"Policy({num:,} parameters, torch.float64, cpu, version 0)"
    assert repr(Reference(policy)) == "Reference(frozen at version 0, torch.float64, cpu)"


def test_the_phases_of_a_policy_use_its_own_storages() -> None:
    """What a phase says it reads or changes is what the borrow rule compares."""
    policy = tiny()
    update = Update(policy)
    assert Prefix(policy).reads[0].overlaps(update.mutates[0])
    assert Suffix(policy).mutates[0].overlaps(update.reads[0])
    assert not Prefix(Reference(policy)).reads[0].overlaps(update.mutates[0])
    assert checksum([[1, 2], [3, 4]]) == [3.0, 7.0]
