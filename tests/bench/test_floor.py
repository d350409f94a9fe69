"""The floating-point floor: exactly the multiplications that the forward does, and none that a backward may leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_policy import prompts, tiny
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from rollplex.bench import floor
from rollplex.phases.prefix import Prefix
from rollplex.policy import Policy, Reference

POLICY = tiny(torch.float32)
LAYERS = POLICY.model.text.layers


def counted(work: Callable[[], object]) -> int:
    """Operations of every matrix product, attention spelled out as products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def beyond(length: int) -> int:
    """What the forward does beyond the floor: attention to what comes later, and the last token's keys and values twice.

    The last layer has one query, and so no attention to what comes later.
    """
    last = LAYERS[-1]
    half = sum(4 * layer.num_heads * layer.head_dim * length * (length - 1) // 2 for layer in LAYERS[:-1])
    return half + 2 * last.qkv.weight[last.num_heads * last.head_dim :].numel()


@pytest.mark.parametrize("case", ["text only", "one image", "several images of different sizes", "video"])
def test_the_prefix_is_counted_exactly(case: str) -> None:
    """Prompt by prompt, against torch's own counter."""
    batch = prompts(case)
    measured = counted(lambda: Prefix(Reference(POLICY), microbatch_tokens=1)(batch))
    more = sum(beyond(prompt.length) for prompt in batch)
    assert floor.prefix_operations(POLICY.model, batch.prompts) == pytest.approx(measured - more, rel=1e-12)


def test_the_backward_is_twice_the_forward_but_for_pixels() -> None:
    """No gradient of the pixels is needed, so the patch embedding goes backward once."""
    policy, batch = Policy.tiny(), prompts("several images of different sizes")
    work = [floor.vision_operations(policy.model, prompt) for prompt in batch]
    grids = torch.cat([prompt.image_grid_thw for prompt in batch])
    patches = torch.cat([prompt.pixel_values for prompt in batch])
    measured = counted(lambda: policy.model.vision(patches, grids).sum().backward())
    trained = floor.step_operations(policy.model, batch.prompts, torch.ones(2, 1), reference=False)
    frozen = floor.prefix_operations(policy.model, batch.prompts) - sum(work)
    heads = 2 * policy.model.text.head.weight.numel() * 2  # a response of one token is predicted from the prompt alone
    assert trained - 3 * frozen - 4 * heads == pytest.approx(measured, rel=1e-12)


def test_the_suffix_is_counted_token_by_token() -> None:
    """Every token is predicted; all but the last enter the layers, each over the prompt and what came before."""
    batch, lengths = prompts("mixed"), torch.tensor([[1, 4], [3, 2], [5, 1]])
    expected = 0
    for prompt, group in zip(batch, lengths.tolist(), strict=True):
        for length in group:
            expected += 2 * POLICY.model.text.head.weight.numel() * length
            for token in range(1, length):
                for layer in LAYERS:
                    weights = sum(w.weight.numel() for w in (layer.qkv, layer.out, layer.gate_up, layer.down))
                    expected += 2 * weights + 4 * layer.num_heads * layer.head_dim * (prompt.length + token)
    assert floor.suffix_operations(POLICY.model, batch.prompts, lengths) == expected


def test_a_reference_costs_one_more_forward() -> None:
    """Of prefix and suffix."""
    batch, lengths = prompts("mixed"), torch.full((3, 2), 4)
    sizes = [floor.step_operations(POLICY.model, batch.prompts, lengths, reference=r) for r in (True, False)]
    forward = floor.prefix_operations(POLICY.model, batch.prompts)
    forward += floor.suffix_operations(POLICY.model, batch.prompts, lengths)
    assert sizes[0] - sizes[1] == forward


def test_a_rate_is_measured() -> None:
    """Positive, whatever the machine."""
    assert floor.matrix_rate(size=32, repeats=2) > 0


def test_the_middle_is_the_median() -> None:
    """One slow round does not move it."""
    assert floor.middle([1.0, 100.0, 2.0]) == 2.0
