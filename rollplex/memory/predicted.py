"""Peaks of a run within a memory, from shapes and settings alone: what each object weighs, and the stages it is there.

Sizes follow from the model's shapes, the prompts' lengths and the phases' settings; stages from the contracts. Nothing
is measured and nothing is run. What an operation needs for itself while it runs is in it for the suffix alone, whose
backward pass is where a step is fullest here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from mmap import PAGESIZE

from rollplex.boundary import LOGPROBS
from rollplex.memory.activations import suffix_activations, suffix_workspace, vision_activations
from rollplex.memory.contracts import OWNERS, STAGES, Stage
from rollplex.memory.managed import Peak
from rollplex.memory.memory import ALIGNMENT
from rollplex.model.model import Model
from rollplex.model.scores import MIN_KEYS
from rollplex.optim_streamed import StreamedAdamW
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch

APART: Mapping[Stage, Sequence[Collection[str]]] = {
    "P1": (("policy.boundary", "policy.tape"), ("reference.weights",)),
    "P2": (("policy.tape",),),
    "P3": (("policy.optimizer",), ("policy.gradients",)),
}
"""Moments of each stage, by what is not there: the reference's prefix runs before the policy's, with every schedule; the
prefix's graph comes back in pieces when the suffix's is gone; gradients have moved out when the optimizer's buffers come,
which have room for them."""


def predicted(
    phases: Sequence[Phase], prompts: PromptBatch, *, release_rollout: bool = True, page_reference: bool = True
) -> tuple[Peak, ...]:
    """The peak of every stage of a step on these prompts, if every response is as long as allowed.

    The keywords are those of `Memory`.
    """
    sizes = _sizes(phases, prompts)
    stays = {"policy.weights", "engine.weights"}
    stays |= set() if release_rollout else {"engine.kv"}
    stays |= set() if page_reference else {"reference.weights"}
    update = next(phase for phase in phases if isinstance(phase, Update))
    if not isinstance(update.optimizer, StreamedAdamW):
        stays.add("policy.optimizer")
    found = []
    for stage in STAGES:
        there = {owner: size for owner, size in sizes.items() if owner in stays or stage in OWNERS[owner].device}
        moments = [{o: n for o, n in there.items() if o in stays or o not in absent} for absent in APART[stage]]
        fullest = max(moments, key=lambda moment: sum(moment.values()))
        ordered = sorted(fullest.items(), key=lambda item: -item[1])
        found.append(Peak(stage=stage, objects=tuple((owner, size / 2**30) for owner, size in ordered)))
    return tuple(found)


def _sizes(phases: Sequence[Phase], prompts: PromptBatch) -> dict[str, int]:
    """Bytes of each object, by owner."""
    sizes: dict[str, int] = {}
    for phase in phases:
        if isinstance(phase, Prefix):
            model, attached = phase.owner.model, isinstance(phase.owner, Policy)
            name = "policy" if attached else "reference"
            sizes[f"{name}.weights"] = weights = _pages(_laid_out(model))
            if attached:
                sizes["policy.gradients"] = weights
                sizes["policy.tape"] = vision_activations(model, prompts, _offloaded(phase).microbatch_tokens)
            per_value = model.dtype.itemsize + (model.wide.itemsize if attached else 0)
            sizes[f"{name}.boundary"] = boundary_values(model, prompts, phase.microbatch_tokens) * per_value
            hidden = len(prompts) * model.text.hidden_size * per_value
            sizes[LOGPROBS] = sizes.get(LOGPROBS, 0) + hidden
        elif isinstance(phase, Decode):
            sizes["engine.kv"] = _rollout(phases, phase, prompts)
            if not phase.engine.weights.overlaps(_policy(phases).weights):
                sizes["engine.weights"] = sizes.get("policy.weights", _pages(_laid_out(_policy(phases).model)))
        elif isinstance(phase, Suffix):
            decode = next(other for other in phases if isinstance(other, Decode))
            rows = min(phase.microbatch, decode.group * len(prompts))
            model, longest = phase.policy.model, decode.max_new_tokens
            sizes["suffix.activations"] = suffix_activations(model, rows, longest, checkpointed=phase.checkpointed)
            sizes["suffix.workspace"] = suffix_workspace(model, rows, longest)
        elif isinstance(phase, Update):
            optimizer = phase.optimizer
            sizes["policy.optimizer"] = _pages(
                optimizer.buffer_bytes(managed=True)
                if isinstance(optimizer, StreamedAdamW)
                else _state(phase.policy.model)
            )
    return sizes


def boundary_values(model: Model, prompts: PromptBatch, microbatch_tokens: int) -> int:
    """Keys and values of all prompts, padded as their microbatches are."""
    layer, num = model.text.layers[0], len(model.text.layers)
    total = 0
    for indices in prompts.microbatches(microbatch_tokens):
        longest = max(prompts[i].length for i in indices)
        total += len(indices) * 2 * num * layer.num_kv_heads * layer.head_dim * longest
    return total


def _rollout(phases: Sequence[Phase], decode: Decode, prompts: PromptBatch) -> int:
    """The responses' cache, and the engine's own keys and values of the prompts."""
    model = _policy(phases).model
    layer = model.text.layers[0]
    rows = decode.group * len(prompts)
    cache = (
        2 * len(model.text.layers) * rows * layer.num_kv_heads * layer.head_dim * max(decode.max_new_tokens, MIN_KEYS)
    )
    prefilled = boundary_values(model, prompts, 8192) + len(prompts) * model.text.hidden_size
    return _pages(cache * model.dtype.itemsize) + prefilled * model.dtype.itemsize


def _offloaded(prefix: Prefix) -> Prefix:
    if prefix.tape != "offload":
        raise ValueError(
            f"predicting a run's peaks: its prefix has tape={prefix.tape!r}, whose graph has no formula here. "
            'Use Prefix(policy, tape="offload"), or measure: run.trace.peak_bytes().'
        )
    return prefix


def _policy(phases: Sequence[Phase]) -> Policy:
    return next(phase.policy for phase in phases if isinstance(phase, Suffix))


def _state(model: Model) -> int:
    """Moments of an optimizer that stays, and its masters where the weights are narrower."""
    rows = 2 if model.dtype == model.wide else 3
    return rows * sum(-(-leaf.numel() * model.wide.itemsize // ALIGNMENT) * ALIGNMENT for leaf in model.leaves.values())


def _laid_out(model: Model) -> int:
    return sum(-(-leaf.nbytes // ALIGNMENT) * ALIGNMENT for leaf in model.leaves.values())


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGESIZE) * PAGESIZE
