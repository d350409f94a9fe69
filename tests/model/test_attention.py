"""Attention over a shared prompt and one's own response, against one plain attention a row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from rollplex.model import attention
from rollplex.model.attention import PromptKeys, Take
from rollplex.model.rectangle import Rectangle
from rollplex.model.scores import attention_scores

HEADS, KV, DIM, PROMPT, LENGTH = 4, 2, 8, 7, 5
COUNTS = {"full": [2, 2, 2], "ragged": [3, 1, 2], "one prompt without rows": [2, 0, 3], "one row": [0, 0, 1]}
LENGTHS = torch.tensor([7, 4, 6])


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def prompt_keys(counts: list[int], *, padded: bool, frozen: bool = False) -> PromptKeys:
    rectangle = Rectangle.of(counts, device="cpu")
    padding = torch.arange(PROMPT) >= rectangle.chosen(LENGTHS)[:, None]
    bias = torch.zeros(padding.shape, dtype=torch.float64).masked_fill(padding, float("-inf"))[:, None, None]
    shape = (3, KV, PROMPT, DIM)
    return PromptKeys(
        keys=draw(*shape, seed=1).requires_grad_(not frozen),
        values=draw(*shape, seed=2).requires_grad_(not frozen),
        bias=bias if padded else None,
        rectangle=rectangle,
        index=rectangle.owners(),
        gradients=None
        if frozen
        else (torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64)),
    )


def own(num: int) -> list[torch.Tensor]:
    return [draw(num, h, LENGTH, DIM, seed=3 + i).requires_grad_() for i, h in enumerate((HEADS, KV, KV))]


def plain(prompt: PromptKeys, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    """Row by row over its own prompt's real keys; output and all five gradients."""
    keys, values = (t.detach().clone().requires_grad_() for t in (prompt.keys, prompt.values))
    rows = []
    for row, owner in enumerate(prompt.index.tolist()):
        real = PROMPT if prompt.bias is None else int(LENGTHS[owner])
        k_row, v_row = (
            torch.cat((a[owner, :, :real], b[row]), dim=1).repeat_interleave(HEADS // KV, dim=0)
            for a, b in ((keys, k), (values, v))
        )
        mask = torch.ones(LENGTH, real + LENGTH, dtype=torch.bool).tril(real)
        rows.append(scaled_dot_product_attention(q[row], k_row, v_row, attn_mask=mask))
    out = torch.stack(rows)
    return [out.detach(), *torch.autograd.grad((out * draw(*out.shape, seed=9)).sum(), (q, k, v, keys, values))]


@pytest.mark.parametrize("way", ["attend", "_attend_anywhere"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize("name", COUNTS)
def test_values_and_gradients_are_exact(name: str, padded: bool, way: str) -> None:
    """Both ways of computing it, for rows of any number a prompt, with prompts of one length or several."""
    prompt = prompt_keys(COUNTS[name], padded=padded)
    q, k, v = own(sum(COUNTS[name]))
    expected = plain(prompt, q, k, v)
    attend = {"attend": prompt.attend, "_attend_anywhere": prompt._attend_anywhere}[way]
    out = attend(q, k, v)
    assert prompt.gradients is not None
    (out * draw(*out.shape, seed=9)).sum().backward()
    for one, two in zip([out, q.grad, k.grad, v.grad, *prompt.gradients], expected, strict=True):
        assert one is not None
        assert float(two.abs().max()) > 0
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", COUNTS)
def test_scores_in_many_blocks_are_those_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few exist at once: those of several prompts, of one, of some of its queries, of one token."""
    sizes: list[int] = []

    def watched(*args: torch.Tensor) -> torch.Tensor:
        found = attention_scores(*args)
        sizes.append(found.numel())
        return found

    monkeypatch.setattr(attention, "attention_scores", watched)
    prompt, parts = prompt_keys(COUNTS[name], padded=True), own(sum(COUNTS[name]))
    expected, whole = prompt.attend(*parts), len(sizes)
    for most in (PROMPT * 21, PROMPT * 5, 1):
        monkeypatch.setattr(attention, "SCORES", most)
        assert torch.allclose(prompt.attend(*parts), expected, rtol=0, atol=1e-14)
    smallest = 4 * PROMPT, sum(COUNTS[name]) * HEADS * LENGTH
    assert max(sizes[-10:]) <= max(smallest)
    assert len(sizes) > 4 * whole, "the control: there were blocks"


def test_gradients_are_added_to_what_is_there() -> None:
    """Microbatches of one boundary sum up."""
    prompt = prompt_keys([2, 0, 1], padded=True)
    q, k, v = own(3)
    sums = []
    for _ in range(2):
        prompt.attend(q, k, v).sum().backward()
        assert prompt.gradients is not None
        sums.append([g.clone() for g in prompt.gradients])
    assert all(torch.allclose(2 * a, b) for a, b in zip(*sums, strict=True))


def test_a_frozen_prompt_takes_no_gradient() -> None:
    """The values are the same, and the response's own gradients flow."""
    q, k, v = own(3)
    one, two = (prompt_keys([2, 0, 1], padded=True, frozen=f).attend(q, k, v) for f in (True, False))
    assert torch.equal(one, two)
    one.sum().backward()
    assert q.grad is not None


def test_sums_may_be_wider_than_keys() -> None:
    """bfloat16 keys, float32 sums: what flows back is added in float32."""
    wide = prompt_keys([2, 0, 1], padded=True)
    narrow = replace(
        wide,
        keys=wide.keys.detach().bfloat16(),
        values=wide.values.detach().bfloat16(),
        bias=None if wide.bias is None else wide.bias.bfloat16(),
        gradients=(torch.zeros(3, KV, PROMPT, DIM), torch.zeros(3, KV, PROMPT, DIM)),
    )
    q, k, v = (t.detach().bfloat16().requires_grad_() for t in own(3))
    narrow.attend(q, k, v).float().sum().backward()
    wide.attend(*own(3)).sum().backward()
    assert narrow.gradients is not None
    assert wide.gradients is not None
    for a, b in zip(narrow.gradients, wide.gradients, strict=True):
        assert a.dtype == torch.float32
        assert torch.allclose(a.double(), b, atol=0.05 * float(b.abs().max()))


def test_shares_of_prompt_and_response_add_up_to_one() -> None:
    """In float32 with large scores, whose logarithms are rounded by far more: what is 1 everywhere stays 1."""
    prompt = prompt_keys([1, 1, 1], padded=True, frozen=True)
    assert prompt.bias is not None
    keys, values = 40 * prompt.keys.float(), torch.ones(3, KV, PROMPT, DIM)
    prompt = replace(prompt, keys=keys, values=values, bias=prompt.bias.float())
    q, k, v = (t.detach().float() for t in own(3))
    assert float((prompt.attend(q, 40 * k, torch.ones_like(v)) - 1).abs().max()) < 3e-7


def test_prompt_and_response_share_to_the_last_bits() -> None:
    """With scores that float32 holds exactly. The control: shares from log-sum-exps, by which flash attentions are merged."""
    seeded = torch.Generator().manual_seed(0)
    shapes = (1, 2, LENGTH, 16), (1, 1, PROMPT, 16), (1, 1, LENGTH, 16)
    q, keys, k = (torch.randint(-1, 2, shape, generator=seeded).float() for shape in shapes)
    for part in (q, keys, k):
        part[..., 0] = 16  # which makes every score about 64
    rectangle = Rectangle.of([1], device="cpu")
    values = torch.ones_like(keys)  # of the prompt; the response's are 0, so that the prompt's share comes out
    prompt = PromptKeys(
        keys=keys, values=values, bias=None, rectangle=rectangle, index=rectangle.owners(), gradients=None
    )
    shares = prompt.attend(q, k, torch.zeros_like(k))[..., :1]

    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    over_prompt, over_own = (q.double() @ part.double().transpose(2, 3) / 4 for part in (keys, k))
    sums = [part.logsumexp(-1, keepdim=True) for part in (over_prompt, over_own.masked_fill(later, float("-inf")))]
    exact = torch.sigmoid(sums[0] - sums[1])
    merged = torch.sigmoid((sums[0].float() - sums[1].float()).double())
    assert float((shares - exact).abs().max()) < 2.5e-7
    assert float((merged - exact).abs().max()) > 5e-7


def test_taking_rows_sums_their_gradients_in_the_accumulator() -> None:
    """A thousand small gradients do not vanish beside a large one, as they would in bfloat16."""
    tensor, total = torch.zeros(3, 4, dtype=torch.bfloat16, requires_grad=True), torch.zeros(3, 4)
    for weight in [1.0, *[1e-3] * 1000]:
        (Take.apply(tensor, torch.tensor([2]), total) * weight).sum().backward()
    assert torch.allclose(total[2], torch.tensor(2.0), rtol=2e-2)
    assert not bool(total[:2].any())
    assert tensor.grad is None
