"""Layers whose activations are dropped and made again in the backward pass.

It knows autograd's rules. It does not know what a layer is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def made_again(run: Callable[..., Any], x: torch.Tensor, *rest: torch.Tensor) -> Any:
    """``run(x, *rest)``, of which a graph keeps the arguments alone; what it closes over gets its gradients too.

    >>> weight = torch.full((3,), 2.0, requires_grad=True)
    >>> made_again(lambda x: (x * weight).sin().sum(), torch.zeros(3)).backward()
    >>> weight.grad
    tensor([0., 0., 0.])
    """
    # Reentrant, so that what the second forward saves passes through the hooks that count it. That kind gives weights no
    # gradient where no argument has one, as in the first layer over a frozen embedding: there it is torch's other kind.
    return checkpoint(run, x, *rest, use_reentrant=x.requires_grad)
