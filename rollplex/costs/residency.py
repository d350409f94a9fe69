"""Which bytes are on a device when: the paper's Table 3 as data, for a policy that follows it in full, in part or not at all.

Sizes come from the model's geometry and the tensor-parallel degrees; the rollout's KV grows in the simulator.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log

from rollplex.bounds import POSITIVE, expect
from rollplex.costs.geometry import Geometry
from rollplex.costs.placement import Placement
from rollplex.costs.workload import Workload
from rollplex.simulate.held import Held

RUNTIME_BYTES = 3 * 2**30
"""Workspaces and graphs of an engine: the middle of the paper's 2-4 GiB."""
CHUNK_BYTES = 2 * 2**30
"""A chunk of streamed optimizer state; three are on the device at once. Our choice; the paper does not give its own."""


@dataclass(frozen=True, kw_only=True)
class Residency:
    """Which of the paper's mechanisms are on.

    >>> NAIVE.name, MANAGED.name
    ('naive', 'managed')
    """

    name: str
    """What it is called in tables."""
    host_state: bool = True
    """FP32 master and moments in host memory, and gradients offloaded as they become final."""
    chunked: bool = True
    """The optimizer takes state in chunks, not all at once."""
    release_rollout: bool = True
    """The rollout's KV and workspaces are freed when generation ends."""
    share_weights: bool = True
    """Training and engine read one copy of the weights."""
    reference_on_demand: bool = True
    """The reference's weights are loaded around their use."""
    drop_activations: bool = True
    """Saved tensors of a prefix leave the device at once; a suffix keeps only layer inputs."""
    deduplicated: bool = True
    """One boundary a prompt; otherwise one for each response, as the paper's 16 GiB can be read."""
    kv_pool_bytes: float | None = None
    """A KV pool of fixed size, as engines reserve it; None: what the tokens need."""

    def __post_init__(self) -> None:
        if self.kv_pool_bytes is not None:
            expect(f"making the Residency {self.name!r}", vars(self), kv_pool_bytes=POSITIVE)

    def placement(self, placement: Placement) -> Placement:
        """What the policy costs in time."""
        return replace(placement, recompute=self.drop_activations, host_state=self.host_state)


MANAGED = Residency(name="managed")
NAIVE = Residency(
    name="naive",
    host_state=False,
    chunked=False,
    release_rollout=False,
    share_weights=False,
    reference_on_demand=False,
    drop_activations=False,
    deduplicated=False,
)
ABLATIONS = (
    replace(MANAGED, name="without state offload", host_state=False),
    replace(MANAGED, name="without release", release_rollout=False),
    replace(MANAGED, name="without chunks", chunked=False),
    replace(MANAGED, name="without sharing", share_weights=False),
)
"""The paper's four ablations, each a mechanism less."""


def objects(
    residency: Residency,
    geometry: Geometry,
    placement: Placement,
    workload: Workload,
    *,
    devices: int,
    rollout_devices: int | None = None,
    rollout_pool: str = "all",
    train_pool: str = "all",
    reference: bool = True,
) -> tuple[Held, ...]:
    """Every object of a job and when it is on a device.

    ``devices`` are the training pool's, and the rollout pool's too unless these are given.
    """
    size = _Sizes(geometry, placement, workload, devices, rollout_devices or devices)
    shared = residency.share_weights and rollout_pool == train_pool
    held = [
        *_weights(residency, size, shared, rollout_pool, train_pool),
        *(_reference(residency, size, train_pool) if reference else ()),
        _boundary(residency, size, train_pool, "policy"),
        *_training(residency, size, train_pool),
    ]
    runtime = Held(owner="engine.runtime", num_bytes=RUNTIME_BYTES, pool=rollout_pool)
    held.append(replace(runtime, since="rollout", until="rollout") if residency.release_rollout else runtime)
    if not residency.release_rollout or residency.kv_pool_bytes is not None:
        pool_bytes = residency.kv_pool_bytes if residency.kv_pool_bytes is not None else size.full_cache()
        cache = Held(owner="engine.kv pool", num_bytes=pool_bytes, pool=rollout_pool, keeps_cache=True)
        held.append(replace(cache, since="rollout", until="rollout") if residency.release_rollout else cache)
    return tuple(held)


def host_bytes(
    residency: Residency, geometry: Geometry, placement: Placement, *, devices: int, reference: bool = True
) -> float:
    """Main memory for the objects of one training device that are not always on it.

    >>> from rollplex.costs.geometry import geometry
    >>> model = geometry("Qwen2.5-VL-32B")
    >>> [round(host_bytes(policy, model, Placement(), devices=32) / 2**30) for policy in (MANAGED, NAIVE)]
    [80, 0]
    """
    size = _Sizes(geometry, placement, Workload(), devices, devices)
    state = size.state + size.gradients if residency.host_state else 0.0
    frozen = geometry.dtype_bytes * size.trained if reference and residency.reference_on_demand else 0.0
    return state + frozen


@dataclass(frozen=True)
class _Sizes:
    geometry: Geometry
    placement: Placement
    workload: Workload
    devices: int
    rollout_devices: int

    @property
    def ranks(self) -> int:
        return max(self.devices // self.placement.train_tp, 1)

    @property
    def trained(self) -> float:
        """Weights of one training rank; the vision tower is whole on every rank."""
        return self.geometry.text_weights / self.placement.train_tp + self.geometry.vision_weights

    @property
    def served(self) -> float:
        return self.geometry.text_weights / self.placement.rollout_tp + self.geometry.vision_weights

    @property
    def state(self) -> float:
        """FP32 master weights and both moments."""
        return 12.0 * self.trained / (self.ranks if self.placement.shard_optimizer else 1)

    @property
    def gradients(self) -> float:
        """In FP32."""
        return 4.0 * self.trained

    def boundary(self, copies: int) -> float:
        """KV of one rank's prompts."""
        prompts = -(-self.workload.prompts // self.ranks)
        tp, g = self.placement.train_tp, self.geometry
        return prompts * copies * self.prompt_tokens * g.kv_bytes * max(1 / tp, 1 / g.kv_heads)

    @property
    def prompt_tokens(self) -> float:
        """The mean of the log-normal, within the limit."""
        w = self.workload
        return exp(min(log(w.prompt_tokens) + w.prompt_spread**2 / 2, log(w.max_prompt_tokens)))

    def full_cache(self) -> float:
        """KV if every response of a replica reached the limit."""
        w, g, tp = self.workload, self.geometry, self.placement.rollout_tp
        groups = -(-w.prompts * tp // self.rollout_devices)
        tokens = groups * (self.prompt_tokens + w.group * w.max_response_tokens)
        return tokens * g.kv_bytes * max(1 / tp, 1 / g.kv_heads)


def _weights(residency: Residency, size: _Sizes, shared: bool, rollout_pool: str, train_pool: str) -> list[Held]:
    width = size.geometry.dtype_bytes
    served = Held(owner="engine.weights", num_bytes=width * size.served, pool=rollout_pool)
    if not shared:
        return [served, Held(owner="policy.weights", num_bytes=width * size.trained, pool=train_pool)]
    # The shared copy is the engine's, which is the wider one; what cannot be shared (fused QKV) is bought back in a buffer.
    g = size.geometry
    fused = g.layers * g.hidden * (g.heads + 2 * g.kv_heads) * g.head_dim
    buffer = Held(owner="policy.unshared", num_bytes=width * fused / size.placement.rollout_tp, pool=train_pool)
    return [replace(served, owner="weights (shared)"), buffer]


def _reference(residency: Residency, size: _Sizes, pool: str) -> list[Held]:
    frozen = Held(owner="reference.weights", num_bytes=size.geometry.dtype_bytes * size.trained, pool=pool)
    uses = ("reference_prefix", "suffix")
    weights = [replace(frozen, since=use, until=use) for use in uses] if residency.reference_on_demand else [frozen]
    return [*weights, _boundary(residency, size, pool, "reference")]


def _boundary(residency: Residency, size: _Sizes, pool: str, whose: str) -> Held:
    num = size.boundary(1 if residency.deduplicated else size.workload.group)
    return Held(owner=f"{whose}.boundary", num_bytes=num, pool=pool, since=f"{whose}_prefix", until="suffix")


def _training(residency: Residency, size: _Sizes, pool: str) -> list[Held]:
    g, tp = size.geometry, size.placement.train_tp
    state, gradients = size.state, size.gradients
    chunk = min(3.0 * CHUNK_BYTES, state)
    if residency.host_state:
        # Final gradients leave chunk by chunk; the optimizer brings state in chunks, or (unchunked) all at once.
        held = [
            Held(owner="gradients", num_bytes=min(CHUNK_BYTES, gradients), pool=pool, since="suffix", until="update")
        ]
        num = chunk if residency.chunked else state + gradients
        held.append(Held(owner="optimizer.state", num_bytes=num, pool=pool, since="update", until="update"))
    else:
        held = [
            Held(owner="gradients", num_bytes=gradients, pool=pool),
            Held(owner="optimizer.state", num_bytes=state, pool=pool),
        ]
    tokens = size.prompt_tokens
    layer = g.activation_bytes() * tokens / tp
    inputs = 2.0 * g.hidden * tokens * g.layers / tp
    if residency.drop_activations:
        held.append(Held(owner="policy.activations", num_bytes=layer, pool=pool, since="policy_prefix"))
        held.append(Held(owner="suffix.activations", num_bytes=inputs + layer, pool=pool, since="suffix"))
    else:
        prompts = -(-size.workload.prompts // size.ranks)
        saved = layer * g.layers * prompts
        held.append(Held(owner="policy.activations", num_bytes=saved, pool=pool, since="policy_prefix", until="suffix"))
        share = size.workload.group * size.workload.response_tokens / max(tokens, 1.0)
        held.append(Held(owner="suffix.activations", num_bytes=layer * g.layers * share, pool=pool, since="suffix"))
    return held
