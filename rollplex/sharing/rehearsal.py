"""A rehearsal of weight sharing on one machine: trainer processes, an engine, and one copy of the weights between them.

Every device is a region of host memory. Its training rank is a process of its own that maps those pages; the engine is
in the process that asked. One real training step is taken and held against a single process that shares nothing. It
shows that bytes are shared and results equal; it says nothing about a GPU's time.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from rollplex.losses import GRPO, token_mask
from rollplex.phases.decode import Decode
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, without_progress_bar
from rollplex.prompts import PromptBatch
from rollplex.sharing.bind import Binding
from rollplex.sharing.checkpoint import collect, rectangle
from rollplex.sharing.crew import Crew
from rollplex.sharing.descriptors import Descriptor, TorchTrainer
from rollplex.sharing.devices import Devices, whole
from rollplex.sharing.layout import Block
from rollplex.sharing.rank_process import Post, RankProcess
from rollplex.sharing.tensor_parallel import TensorParallel
from rollplex.sharing.trainer import Updated
from rollplex.step import Rewards, Rollout
from rollplex.trace import Tick, Trace

RESPONSE_TOKENS = 6
"""Longest of the responses that engines are compared by."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What was found."""

    trainer: str
    """How the trainer lays its tensors out."""
    train_tp: int
    """Training ranks, each a process."""
    rollout_tp: int
    """Shards of the engine."""
    num_shared: int
    """Tensors of all training ranks that are the engine's own bytes by plan."""
    num_seen: int
    """Those through which each side read what the other had written, in another process."""
    num_private: int
    """Tensors of all training ranks that are copied by plan."""
    num_private_seen: int
    """Those whose writing the engine saw at once: must be 0, or seeing would show nothing."""
    moved: float
    """Largest change of any weight by the update."""
    update_error: float
    """Largest difference of any weight, on any device, from the same update in a single process."""
    logprob_error: float
    """Largest difference of the engine's next log-probabilities from those of a model loaded from disk, which was saved
    from what the training ranks hold."""
    stale_error: float
    """What the engine would be off by had it kept the weights from before the update."""
    versions: tuple[int, ...]
    """Version that the engine finds stamped on each device."""
    updates: tuple[Updated, ...]
    """What each rank did."""

    @property
    def trace(self) -> Trace:
        """The update as a trace, a lane a rank; what publishing moved is in its label.

        Ranks are processes that share this machine's cores: it shows the order of the work, no device's time.
        """
        zero = min(update.clock_s[0] for update in self.updates)
        made = Trace(device=f"cpu, {self.train_tp} processes", schedules={0: "Update"})
        for rank, update in enumerate(self.updates):
            labels = ("gradient", "adamw", update.published.label)
            for i, (phase, label) in enumerate(zip(("suffix", "update", "publish"), labels, strict=True)):
                start, end = (time - zero for time in update.clock_s[i : i + 2])
                made.ticks.append(Tick(0, "P3" if i else "P2", f"trainer {rank}", phase, label, start, end))
        return made


def rehearse(
    policy: Policy,
    prompts: PromptBatch,
    rollout: Rollout,
    rewards: Rewards,
    *,
    train_tp: int,
    rollout_tp: int,
    trainer: Descriptor | None = None,
    lr: float = 1e-3,
    timeout_s: float = 300.0,
) -> Rehearsal:
    """Take one step of a policy with a tensor-parallel trainer over a shared engine; the policy itself stays as it is.

    ``trainer`` lays the text layers out: `TorchTrainer` unless given. The vision tower is whole on every rank.
    """
    frozen = sum(not leaf.requires_grad for leaf in policy.model.leaves.values())
    if frozen:
        raise ValueError(
            f"rehearsing an update: {frozen} of the policy's weights are frozen, and the tensor-parallel trainer trains all "
            "of them. Rehearse with a policy that was not frozen."
        )
    trainer = trainer or TorchTrainer()
    before = _weights(policy)
    with (
        tempfile.TemporaryDirectory() as folder,
        Devices(policy, trainer, train_tp=train_tp, rollout_tp=rollout_tp) as devices,
    ):
        posts = _posts(devices, policy, Path(folder) / "meeting", lr, timeout_s)
        with Crew(RankProcess, posts, preload=RankProcess.__module__, timeout_s=timeout_s) as crew:
            crew.ask("load", before)
            scorers = [devices.scorer(replica, policy) for replica in range(devices.num_replicas)]
            seen, private_seen = _look(crew, devices.bindings)
            updates = tuple(crew.ask("step", prompts, rollout, rewards))
            held = zip([p.train for p in devices.pairings], crew.ask("weights"), strict=True)
            fresh = _from_disk(policy, collect(held, {name: w.shape for name, w in before.items()}), Path(folder))
        after = Decode(fresh.engine(), group=2, max_new_tokens=RESPONSE_TOKENS)(prompts)
        gaps = [_scoring_gap(scorers, prompts, after)]
        if rollout_tp == 1:
            gaps += [_decoding_gap(devices.policy(rank, policy), prompts, after) for rank in range(train_tp)]
        single = _weights(_single_process(policy, prompts, rollout, rewards, lr))
        engines = [devices.weights(replica, single) for replica in range(devices.num_replicas)]
        return Rehearsal(
            trainer=type(trainer).__name__,
            train_tp=train_tp,
            rollout_tp=rollout_tp,
            num_shared=sum(len(p.train) - len(p.private) for p in devices.pairings),
            num_seen=seen,
            num_private=sum(len(p.private) for p in devices.pairings),
            num_private_seen=private_seen,
            moved=_largest_gap(single, before),
            update_error=max(_largest_gap(engine, single) for engine in engines),
            logprob_error=max(gaps),
            stale_error=_scoring_gap([whole(policy)], prompts, after),
            versions=tuple(binding.stamp.version for binding in devices.bindings),
            updates=updates,
        )


def _posts(devices: Devices, policy: Policy, meeting: Path, lr: float, timeout_s: float) -> list[tuple[Post]]:
    return [
        (
            Post(
                rank=place.train_rank,
                pairings=devices.pairings,
                pages=devices.pages(place.train_rank),
                config=policy.model.module.config,
                dtype=policy.model.dtype,
                meeting=str(meeting),
                lr=lr,
                timeout_s=timeout_s,
            ),
        )
        for place in devices.places
    ]


def _single_process(policy: Policy, prompts: PromptBatch, rollout: Rollout, rewards: Rewards, lr: float) -> Policy:
    """The same step by the phases of a single process, on a copy."""
    single = copy.deepcopy(policy)
    suffix = Suffix(single, loss=GRPO())(prompts, Prefix(single)(prompts), rollout, rewards)
    Update(single, lr=lr)(suffix)
    return single


def _from_disk(policy: Policy, weights: Mapping[str, torch.Tensor], folder: Path) -> Policy:
    """A policy with the given weights, saved as a checkpoint and loaded again."""
    made = copy.deepcopy(policy)
    with torch.no_grad(), without_progress_bar():
        for name, parameter in made.model.module.named_parameters():
            parameter.copy_(weights[name])
        return Policy.from_pretrained(made.save_pretrained(folder / "checkpoint"), dtype=policy.model.dtype)


def _weights(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: weight.detach() for name, weight in policy.model.module.named_parameters()}


@torch.no_grad()
def _look(crew: Crew, bindings: list[Binding]) -> tuple[int, int]:
    """Write through one side and read through the other, both ways; what was there is put back.

    Returns the shared tensors seen both ways, and the private ones seen at all.
    """
    before = crew.ask("corners")
    corners = [_engine_corners(binding) for binding in bindings]
    engines = [{name: float(corner) for name, corner in of.items()} for of in corners]
    # Small whole numbers, which every type of weights has exactly.
    marks = [{name: i % 250 + 1.0 for i, name in enumerate(of)} for of in before]
    crew.ask("write corners", marks)
    there = [{name: float(corner) == marks[i][name] for name, corner in of.items()} for i, of in enumerate(corners)]
    for of in corners:
        for corner in of.values():
            corner.neg_().sub_(1.0)
    back = [{name: now == -marks[i][name] - 1 for name, now in of.items()} for i, of in enumerate(crew.ask("corners"))]
    crew.ask("write corners", before)
    for of, values in zip(corners, engines, strict=True):
        for name, corner in of.items():
            corner.fill_(values[name])
    shared = seen = 0
    for i, binding in enumerate(bindings):
        private = {layout.tensor for layout in binding.pairing.private}
        shared += sum(there[i][name] and back[i][name] for name in marks[i] if name not in private)
        seen += sum(there[i][name] or back[i][name] for name in private)
    return shared, seen


def _engine_corners(binding: Binding) -> dict[str, torch.Tensor]:
    """For each of the trainer's tensors the place in the engine's where its first number is."""
    found = {}
    for layout in binding.pairing.train:
        first = layout.held[0]
        corner = Block(first.name, first.row, 1, first.column, 1)
        for engine in binding.pairing.engine:
            if any(block.common(corner) for block in engine.held):
                found[layout.tensor] = rectangle(engine, binding.engine[engine.tensor], corner)
    return found


@torch.no_grad()
def _scoring_gap(scorers: list[TensorParallel], prompts: PromptBatch, rollout: Rollout) -> float:
    """Largest difference of log-probabilities, over engines and sampled tokens."""
    worst = 0.0
    for scorer in scorers:
        for prompt, group in zip(prompts, rollout.groups, strict=True):
            for tokens, logprobs, length in zip(group.tokens, group.logprobs, group.lengths.tolist(), strict=True):
                scored = scorer.logprobs(prompt, tokens[:length], group.sampling)
                worst = max(worst, float((scored - logprobs[:length]).abs().max()))
    return worst


def _decoding_gap(policy: Policy, prompts: PromptBatch, rollout: Rollout) -> float:
    """The same for the built-in engine, which draws its own tokens: other tokens are a difference without bound."""
    own = Decode(policy.engine(), group=rollout.groups[0].size, max_new_tokens=RESPONSE_TOKENS)(prompts)
    worst = 0.0
    for ours, theirs in zip(own.groups, rollout.groups, strict=True):
        real = token_mask(theirs.lengths, theirs.tokens.shape[1])
        if not torch.equal(ours.lengths, theirs.lengths) or bool((ours.tokens != theirs.tokens)[real].any()):
            return float("inf")
        worst = max(worst, float((ours.logprobs - theirs.logprobs)[real].abs().max()))
    return worst


def _largest_gap(one: Mapping[str, torch.Tensor], two: Mapping[str, torch.Tensor]) -> float:
    """Largest difference of any two weights."""
    if one.keys() != two.keys():
        raise ValueError(f"comparing weights: {sorted(one.keys() ^ two.keys())} are on one side only")
    return float(torch.stack([(one[name] - two[name]).abs().max() for name in one]).max())
