"""Losses, gradients, KL and clip ratio against the code of TRL itself."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from loss_fakes import LIMIT, TYPES, batch, make, ours

from rollplex.losses import GRPO, token_mask


class TrlOnly:
    """As much of a TRL trainer as its loss reads; the log-probs come from the batch, not from a model."""

    def __init__(self, loss: GRPO, b: SimpleNamespace) -> None:
        self.loss_type, self.beta = loss.loss_type, loss.beta
        self.epsilon_low, self.epsilon_high = loss.epsilon, loss.epsilon_high
        self.max_completion_length = LIMIT
        self.importance_sampling_level = "token"
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.use_vllm = self.aux_loss_enabled = self._entropy_bonus_enabled = False
        self.current_gradient_accumulation_steps = 1
        self.args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
        self.accelerator = SimpleNamespace(num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x)
        self.model = SimpleNamespace(training=True)
        names = [
            "kl",
            "entropy",
            *(f"clip_ratio/{n}" for n in ("low_mean", "high_mean", "region_mean", "low_min", "high_max")),
        ]
        self._metrics = {"train": {name: [] for name in names}}
        self.logprobs = b.logprobs

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor, None]:
        return self.logprobs, torch.zeros_like(self.logprobs), None


@pytest.mark.parametrize("loss_type", TYPES)
@pytest.mark.parametrize("old_logprobs", ["policy", "rollout"])
def test_loss_gradient_kl_and_clip_ratio_equal_trls(loss_type: str, old_logprobs: str) -> None:
    trl = pytest.importorskip("trl.trainer.grpo_trainer", reason="compares with TRL, which is an extra")
    b, loss = batch([3, 1, 7, 5]), make(loss_type, old_logprobs=old_logprobs)
    mask = token_mask(b.lengths, b.logprobs.shape[1]).long()
    inputs = {
        "prompt_ids": mask[:, :1],
        "prompt_mask": mask[:, :1],
        "completion_ids": mask,
        "completion_mask": mask,
        "advantages": b.advantages,
        "ref_per_token_logps": b.reference,
        "num_items_in_batch": mask.sum(),
        "old_per_token_logps": b.old if old_logprobs == "rollout" else None,
    }
    trainer = TrlOnly(loss, b)
    theirs = trl.GRPOTrainer._compute_loss(trainer, None, inputs)
    mine = ours(loss, b)
    (their_gradient,) = torch.autograd.grad(theirs, b.logprobs)
    (gradient,) = torch.autograd.grad(mine, b.logprobs)
    torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-12, atol=1e-15)
    assert gradient.abs().max() > 0
    terms = loss.terms(b.logprobs, b.old, b.reference, b.advantages, b.lengths)
    num_tokens = int(b.lengths.sum())
    assert terms.kl[mask.bool()].mean().item() == pytest.approx(trainer._metrics["train"]["kl"][0])
    ratio = trainer._metrics["train"]["clip_ratio/region_mean"][0]
    assert int(terms.clipped.sum()) / num_tokens == pytest.approx(ratio)
    assert (ratio > 0) == (old_logprobs == "rollout")
