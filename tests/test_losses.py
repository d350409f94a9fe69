"""Losses equal TRL's formulas, however the batch is split and whatever stands in the padding."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_fakes import LIMIT, TYPES, batch, make, ours

from rollplex.losses import DAPO, GRPO, DrGRPO, kl_estimate, token_mask


def by_hand(loss: GRPO, b: SimpleNamespace) -> float:
    """The published formulas, token by token in plain Python."""
    sums, num_tokens = [], 0
    for i, length in enumerate(b.lengths.tolist()):
        terms = []
        for t in range(length):
            lp, old, ref = (x[i, t].item() for x in (b.logprobs, b.old, b.reference))
            advantage, ratio = float(b.advantages[i]), math.exp(lp - old)
            clipped = min(max(ratio, 1 - loss.epsilon), 1 + loss.epsilon_high)
            kl = math.exp(ref - lp) - (ref - lp) - 1
            terms.append(-min(ratio * advantage, clipped * advantage) + loss.beta * kl)
        num_tokens += length
        sums.append((math.fsum(terms), length))
    if loss.loss_type == "grpo":
        return math.fsum(s / n for s, n in sums) / len(sums)
    total = math.fsum(s for s, _ in sums)
    return total / (len(sums) * LIMIT) if loss.loss_type == "dr_grpo" else total / num_tokens


@pytest.mark.parametrize("loss_type", TYPES)
def test_each_type_is_its_published_formula(loss_type: str) -> None:
    b = batch([3, 1, 7, 5])
    assert ours(make(loss_type), b).item() == pytest.approx(by_hand(make(loss_type), b), rel=1e-12)


@pytest.mark.parametrize("loss_type", TYPES)
@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, LIMIT), min_size=1, max_size=8), size=st.integers(1, 8))
def test_any_split_into_microbatches_gives_one_value_and_gradient(
    loss_type: str, lengths: list[int], size: int
) -> None:
    b, loss = batch(lengths), make(loss_type)
    parts = [slice(i, i + size) for i in range(0, len(lengths), size)]
    whole, split = ours(loss, b), ours(loss, b, parts)
    torch.testing.assert_close(split, whole, rtol=1e-12, atol=1e-15)
    gradients = [torch.autograd.grad(x, b.logprobs)[0] for x in (whole, split)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-15)


def test_averaging_the_microbatches_means_would_not_give_one_value() -> None:
    b = batch([1, 12])
    parts = [SimpleNamespace(**{k: v[i : i + 1] for k, v in vars(b).items()}) for i in range(2)]
    mean = sum(ours(make("bnpo"), part).item() for part in parts) / 2
    assert mean != pytest.approx(ours(make("bnpo"), b).item(), rel=1e-3), "control: the parts must differ"


@pytest.mark.parametrize("loss_type", TYPES)
@pytest.mark.parametrize("filling", [0.0, -1e30, math.inf, math.nan])
def test_padding_never_matters(loss_type: str, filling: float) -> None:
    b, loss = batch([1, 2, LIMIT]), make(loss_type)
    expected = by_hand(loss, b)
    mask = token_mask(b.lengths, LIMIT)
    b.logprobs = b.logprobs.detach().masked_fill(~mask, filling).requires_grad_()
    b.old, b.reference = b.old.masked_fill(~mask, -filling), b.reference.masked_fill(~mask, filling)
    value = ours(loss, b)
    value.backward()
    assert value.item() == pytest.approx(expected, rel=1e-12)
    assert b.logprobs.grad[~mask].abs().max() == 0
    assert b.logprobs.grad.isfinite().all()


@pytest.mark.parametrize("loss_type", TYPES)
def test_very_unequal_lengths_equal_the_rows_alone(loss_type: str) -> None:
    b, loss = batch([1, 2, 500]), make(loss_type)
    whole = ours(loss, b) * loss.denominator(3, 503)
    for i, n in enumerate([1, 2, 500]):
        terms = loss.terms(
            b.logprobs[i : i + 1, :n], b.old[i : i + 1, :n], b.reference[i : i + 1, :n], b.advantages[i : i + 1]
        )
        whole = whole - loss.partial_sum(terms.total, torch.tensor([n]))
    assert abs(whole.item()) < 1e-10


def test_the_old_policy_is_the_policy_unless_said_otherwise() -> None:
    b, loss = batch([4, 2]), GRPO()
    terms = loss.terms(b.logprobs, b.old, None, b.advantages, b.lengths)
    mask = token_mask(b.lengths, 4)
    torch.testing.assert_close(terms.policy[mask], -b.advantages.unsqueeze(1).expand(-1, 4)[mask], rtol=0, atol=0)
    assert not terms.clipped.any()
    (gradient,) = torch.autograd.grad(loss.partial_sum(terms.total, b.lengths), b.logprobs)
    expected = torch.where(mask, -b.advantages.unsqueeze(1) / b.lengths.unsqueeze(1), 0.0)
    torch.testing.assert_close(gradient, expected)


def test_a_clipped_token_has_no_gradient() -> None:
    logprobs = torch.tensor([[0.0, 0.0, 0.0, 0.0]], requires_grad=True)
    old = -torch.tensor([[1.5, 1.1, 0.5, 1.0]]).log()
    terms = GRPO(old_logprobs="rollout").terms(logprobs, old, None, torch.tensor([1.0]))
    assert terms.clipped.tolist() == [[True, False, False, False]]
    terms.total.sum().backward()
    assert (logprobs.grad == 0).tolist() == [[True, False, False, False]]


def test_the_kl_estimate_is_never_negative_and_zero_only_where_equal() -> None:
    logprobs = torch.linspace(-5, 0, 11)
    kl = kl_estimate(logprobs, torch.full_like(logprobs, -2.5))
    assert (kl >= 0).all()
    assert (kl == 0).tolist() == [x == -2.5 for x in logprobs.tolist()]


def test_without_beta_the_kl_is_seen_but_not_in_the_loss() -> None:
    b = batch([4, 2])
    terms = make("grpo", beta=0.0).terms(b.logprobs, b.old, b.reference, b.advantages, b.lengths)
    assert terms.kl.sum() > 0
    assert torch.equal(terms.total, terms.policy)


@pytest.mark.parametrize("loss_type", TYPES)
def test_all_truncated_and_masked_is_zero_without_nan(loss_type: str) -> None:
    loss = make(loss_type, mask_truncated=True)
    keep = loss.keeps(torch.tensor([False, False]), torch.tensor([True, True]))
    b = batch([3, 5])
    kept = [x[keep] for x in (b.logprobs, b.old, b.reference, b.advantages, b.lengths)]
    value = loss.partial_sum(loss.terms(*kept).total, kept[-1]) / loss.denominator(0, 0)
    value.backward()
    assert value.item() == 0.0
    assert b.logprobs.grad.abs().max() == 0


def test_a_response_cut_at_the_limit_is_trained_to_its_last_token_unless_masked() -> None:
    finished, scored = torch.tensor([True, False]), torch.tensor([True, True])
    assert make("grpo").keeps(finished, scored).tolist() == [True, True]
    assert make("grpo", mask_truncated=True).keeps(finished, scored).tolist() == [True, False]
    b = batch([LIMIT, LIMIT])
    (gradient,) = torch.autograd.grad(ours(make("grpo"), b), b.logprobs)
    assert (gradient[:, -1] != 0).all()


def test_unscored_responses_are_out() -> None:
    assert make("grpo").keeps(torch.ones(2).bool(), torch.tensor([False, True])).tolist() == [False, True]


@pytest.mark.parametrize("loss_type", TYPES)
def test_leaving_a_response_out_equals_a_batch_without_it(loss_type: str) -> None:
    """Sums and denominator agree on who is in: masking one of three is the same as having drawn two."""
    b, loss = batch([3, 7, 5]), make(loss_type, mask_truncated=True)
    keep = loss.keeps(torch.tensor([True, False, True]), torch.ones(3).bool())
    kept = SimpleNamespace(**{name: value[keep] for name, value in vars(b).items()})
    assert ours(loss, kept).item() == pytest.approx(by_hand(loss, kept), rel=1e-12)


@pytest.mark.parametrize("loss_type", TYPES)
def test_a_response_without_tokens_adds_nothing(loss_type: str) -> None:
    b, loss = batch([3, 0]), make(loss_type)
    terms = loss.terms(b.logprobs, b.old, b.reference, b.advantages, b.lengths)
    alone = loss.partial_sum(terms.total[:1], b.lengths[:1])
    assert loss.partial_sum(terms.total, b.lengths).item() == alone.item()


def test_the_mask_comes_from_lengths_so_a_real_end_token_stays_in() -> None:
    """Pad and end-of-sequence may be one id: the last of two tokens counts, whatever its id is."""
    assert token_mask(torch.tensor([2]), 4).tolist() == [[True, True, False, False]]


def test_what_a_loss_needs_follows_from_its_fields() -> None:
    assert (GRPO().needs_reference, GRPO(beta=0.1).needs_reference) == (False, True)
    assert (GRPO().needs_all_rewards, GRPO(scale_rewards="batch").needs_all_rewards) == (False, True)


def test_the_named_losses_are_grpo_with_their_papers_choices() -> None:
    assert DAPO() == GRPO(loss_type="dapo", epsilon_high=0.28)
    assert DrGRPO(max_completion_length=9) == GRPO(loss_type="dr_grpo", scale_rewards=False, max_completion_length=9)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("loss_type", "GRPO", "'bnpo'"),
        ("old_logprobs", "engine", "'rollout'"),
        ("scale_rewards", "std", "'batch'"),
        ("beta", -0.1, "at least 0"),
        ("beta", math.nan, "at least 0"),
        ("beta", "0.1", "at least 0"),
        ("epsilon", 1.0, "below 1"),
        ("epsilon_high", math.inf, "finite"),
        ("mask_truncated", 1, "True or False"),
        ("max_completion_length", 0, "at least 1"),
        ("max_completion_length", 48.0, "at least 1"),
    ],
)
def test_an_invalid_argument_names_field_value_and_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ValueError, match=rf"{field}=.*{allowed}") as caught:
        GRPO(**{field: value})
    assert repr(value) in str(caught.value)


def test_dr_grpo_asks_for_its_constant() -> None:
    with pytest.raises(ValueError, match="max_completion_length=None"):
        GRPO(loss_type="dr_grpo")


def test_missing_log_probs_are_named() -> None:
    b = batch([2])
    with pytest.raises(ValueError, match=r"reference_logprobs=None: beta=0\.04"):
        make("grpo").terms(b.logprobs, b.old, None, b.advantages)
    with pytest.raises(ValueError, match="old_logprobs=None"):
        make("grpo").terms(b.logprobs, None, b.reference, b.advantages)
