"""Drawing tokens: the distribution, its inversion, and numbers that belong to a sample."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollplex.sampling import Sampling, uniforms

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, 3.0]], dtype=torch.float64)
ALMOST_ONE = float(numpy.nextafter(1.0, 0.0))

logits = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12)
filters = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.3, 1.0, 2.0]), "top_p": st.floats(0.05, 1), "top_k": st.integers(0, 6)}
)


def kept(sampling: Sampling, row: torch.Tensor = LOGITS) -> list[int]:
    return sampling.logprobs(row)[0].isfinite().nonzero()[:, 0].tolist()


def test_logits_are_divided_by_the_temperature() -> None:
    """The returned log-probabilities are those of the distribution that is drawn from."""
    assert torch.equal(Sampling(temperature=0.5).logprobs(LOGITS), torch.log_softmax(LOGITS / 0.5, -1))
    assert torch.equal(Sampling().logprobs(LOGITS), torch.log_softmax(LOGITS, -1))


def test_top_k_keeps_the_most_probable() -> None:
    """As many as asked, and all of them where there are fewer."""
    assert kept(Sampling(top_k=2)) == [0, 4]
    assert kept(Sampling(top_k=99)) == [0, 1, 2, 3, 4]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    """The token that crosses the limit is kept; the probable ones come first."""
    probabilities = LOGITS.softmax(-1)[0]
    first = float(probabilities[4])
    assert kept(Sampling(top_p=first - 1e-6)) == [4]
    assert kept(Sampling(top_p=first + 1e-6)) == [0, 4]


@given(logits, filters)
def test_what_is_left_is_renormalised(values: list[float], options: dict[str, float]) -> None:
    """A filtered distribution sums to one, and keeps the ratios of those that are left."""
    row = torch.tensor([values], dtype=torch.float64)
    found, whole = Sampling(**options).logprobs(row), Sampling(temperature=options["temperature"]).logprobs(row)  # type: ignore[arg-type]
    assert float(found.exp().sum()) == pytest.approx(1)
    shifted = (found - whole)[found.isfinite()]
    assert torch.allclose(shifted, shifted[0])
    assert bool(found[0, row[0].argmax()].isfinite()), "the most probable token always stays"


@given(logits, filters, st.sampled_from([0.0, 0.25, 0.5, 0.999999, ALMOST_ONE]), st.booleans())
def test_a_token_of_probability_zero_is_never_drawn(
    values: list[float], options: dict[str, float], uniform: float, wide: bool
) -> None:
    """Not even by the largest number below one, whatever rounding makes of it in float32."""
    row = torch.tensor([values], dtype=torch.float64 if wide else torch.float32)
    sampling = Sampling(banned=(0,), **options)  # type: ignore[arg-type]
    found = sampling.logprobs(row)
    drawn = sampling.draw(found, torch.tensor([uniform], dtype=torch.float64))
    assert int(drawn) != 0
    assert float(found[0, drawn]) > float("-inf")


def test_draws_follow_the_distribution() -> None:
    """Over evenly spread numbers every token comes up as often as it is probable."""
    num = 10_000
    found = Sampling(temperature=1.5).logprobs(LOGITS)
    spread = (torch.arange(num, dtype=torch.float64) + 0.5) / num
    drawn = Sampling().draw(found.expand(num, -1), spread)
    counts = torch.bincount(drawn, minlength=5).double() / num
    assert torch.allclose(counts, found.exp()[0], atol=1e-3)


def test_greedy_takes_the_most_probable_token_that_is_allowed() -> None:
    """Temperature 0 ignores the numbers, and honours bans."""
    numbers = torch.tensor([0.99], dtype=torch.float64)
    for banned, expected in (((), 4), ((4,), 0)):
        sampling = Sampling(temperature=0, banned=banned)
        assert int(sampling.draw(sampling.logprobs(LOGITS), numbers)) == expected


def test_a_banned_token_is_impossible_however_probable() -> None:
    """The others get what it had."""
    found = Sampling(banned=(4,)).logprobs(LOGITS + torch.tensor([0, 0, 0, 0, 1e3]))
    assert found[0, 4] == float("-inf")
    assert torch.allclose(found[0, :4], torch.log_softmax(LOGITS[0, :4], -1))


def test_a_cut_distribution_says_so() -> None:
    """The trainer scores under the uncut one, so the two do not compare."""
    assert Sampling(top_p=0.9).filtered
    assert Sampling(top_k=5).filtered
    assert not Sampling(temperature=0.3, banned=(1,)).filtered


@pytest.mark.parametrize(
    "options",
    [{"temperature": -1}, {"temperature": float("nan")}, {"top_p": 0}, {"top_p": 1.1}, {"top_k": -1}],
    ids=str,
)
def test_what_is_no_distribution_is_refused(options: dict[str, float]) -> None:
    """The message names the option and what it may be."""
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*; it must be"):
        Sampling(**options)  # type: ignore[arg-type]


KEYS = {"seed": 1, "step": 2, "prompt": 3, "sample": 4}


def test_numbers_depend_on_their_keys_alone() -> None:
    """Asking again, or for more, gives the same ones, wherever numpy's own generator is."""
    before = uniforms(**KEYS, num=5)
    numpy.random.default_rng().random(3)
    assert (uniforms(**KEYS, num=9)[:5] == before).all()


@pytest.mark.parametrize("key", KEYS)
def test_another_key_gives_other_numbers(key: str) -> None:
    """No two samples share their randomness."""
    assert not (uniforms(**{**KEYS, key: 0}, num=5) == uniforms(**KEYS, num=5)).any()


def test_keys_do_not_run_together() -> None:
    """Prompt 1, sample 11 is not prompt 11, sample 1."""
    one, two = {**KEYS, "prompt": 1, "sample": 11}, {**KEYS, "prompt": 11, "sample": 1}
    assert not (uniforms(**one, num=5) == uniforms(**two, num=5)).any()


def test_numbers_are_spread_over_the_unit_interval() -> None:
    """Over many samples, each in [0, 1) and even."""
    drawn = numpy.concatenate([uniforms(seed=0, step=0, prompt=p, sample=0, num=20) for p in range(200)])
    assert 0 <= drawn.min() < drawn.max() < 1
    assert abs(drawn.mean() - 0.5) < 0.02
