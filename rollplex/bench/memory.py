"""What phase-aware residency saves and costs: a budget that the full system fits, and what breaks it.

A run with every mechanism on and one with everything resident take the same steps in turns: the numbers must agree bit
for bit, and the ratio of their times is the price. Then the first goes on to see whether anything grows. Then each
mechanism is taken away, which must fail in the stage that the contracts predict. On a CPU main memory stands for the
device, and nothing that is moved is moved behind work: the ratio is the price without overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tqdm import tqdm

from rollplex.bench.floor import middle
from rollplex.bench.scaled import scaled_policy
from rollplex.bench.workloads import DEFAULT
from rollplex.engines.copied_engine import CopiedEngine
from rollplex.losses import GRPO
from rollplex.memory.arena import OutOfDeviceMemory
from rollplex.memory.managed import Peak
from rollplex.memory.memory import Memory
from rollplex.memory.predicted import predicted
from rollplex.optim_streamed import CHUNK_BYTES
from rollplex.phases.decode import Decode
from rollplex.phases.phase import Phase
from rollplex.phases.prefix import Prefix
from rollplex.phases.reward import Reward
from rollplex.phases.suffix import Suffix
from rollplex.phases.update import Update
from rollplex.policy import Policy, Reference
from rollplex.run import Run
from rollplex.schedules import Rollplex

HEADROOM = 1.03
"""Budget over the full system's predicted peak."""
TOLERANCE = 0.05
"""How far the measured peak may be from the predicted one."""
COST = 1.25
"""What management may cost in time."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A system: which mechanisms are on."""

    name: str
    """What it is called."""
    offload_state: bool = True
    """The optimizer's state lives on the host."""
    chunk_optimizer: bool = True
    """It visits the device in chunks, not at once."""
    share_weights: bool = True
    """The engine reads the trainer's copy."""
    release_rollout: bool = True
    """The rollout's keys and values are freed after decoding."""


FULL = Case(name="full")
ABLATIONS = (
    Case(name="no state offload", offload_state=False),
    Case(name="rollout KV kept", release_rollout=False),
    Case(name="optimizer not chunked", chunk_optimizer=False),
    Case(name="weights not shared", share_weights=False),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the model and its step are."""

    hidden: int
    """Width of the text part."""
    prompts: int
    """Prompts of a step."""
    group: int
    """Responses to each."""
    max_new_tokens: int
    """Tokens of each."""
    chunk_bytes: int
    """A chunk of the streamed optimizer."""

    def phases(self, policy: Policy, case: Case, *, tape: Any = "offload") -> list[Phase]:
        """Fresh phases of a case."""
        reference = Reference(policy)
        chunk = self.chunk_bytes if case.chunk_optimizer else 2**62
        engine = policy.engine() if case.share_weights else CopiedEngine(policy)
        lengths = torch.full((self.prompts, self.group), self.max_new_tokens)
        return [
            Prefix(policy, tape=tape),
            Prefix(reference),
            Decode(engine, group=self.group, max_new_tokens=self.max_new_tokens, lengths=lengths),
            Reward(DEFAULT.rewards, weights=DEFAULT.reward_weights),
            Suffix(policy, reference, loss=GRPO(beta=0.04), microbatch=2),
            Update(policy, lr=1e-4, weight_decay=0.1, chunk_bytes=chunk if case.offload_state else None),
        ]

    def run(self, phases: Sequence[Phase], memory: Memory | None) -> Run:
        """A run of phases under the paper's schedule."""
        return Run(DEFAULT.task, phases, Rollplex(), prompts=self.prompts, memory=memory)

    def peaks(self, phases: Sequence[Phase], policy: Policy, case: Case) -> tuple[Peak, ...]:
        """What the contracts predict of a case."""
        prompts = policy.prompts(DEFAULT.task.rows(self.prompts))
        return predicted(phases, prompts, release_rollout=case.release_rollout)


def bench(
    *,
    steps: int = 50,
    compared: int = 8,
    hidden: int = 512,
    prompts: int = 4,
    group: int = 4,
    max_new_tokens: int = 48,
    chunk_bytes: int = CHUNK_BYTES,
) -> dict[str, Any]:
    """The full system over ``steps``, its first ``compared`` beside everything resident, and the four ablations."""
    if not 2 <= compared <= steps:
        raise ValueError(f"benching memory: compared is {compared}; it must be between 2 and steps, which is {steps}")
    size = Size(hidden=hidden, prompts=prompts, group=group, max_new_tokens=max_new_tokens, chunk_bytes=chunk_bytes)
    with tqdm(total=steps + compared + len(ABLATIONS), desc="bench memory", unit="step") as progress:
        full = _full(size, steps, compared, progress)
        broken = []
        for case in ABLATIONS:
            broken.append(_ablation(size, case, full["budget_bytes"]))
            progress.update()
    checks = {
        "peak": abs(full["peak_ratio"] - 1) <= TOLERANCE,
        "growth": full["growth_bytes"] == 0,
        "equal": full["max_weight_difference"] == 0.0,
        "time": full["time_ratio"] <= COST,
        "ablations": all(row["stage"] == row["predicted_stage"] is not None for row in broken),
    }
    found = {**full, "ablations": broken, "checks": checks, "passed": all(checks.values())}
    print(text(found))
    return found


def _full(size: Size, steps: int, compared: int, progress: tqdm[Any]) -> dict[str, Any]:
    policy, other = scaled_policy(size.hidden), scaled_policy(size.hidden)
    phases = size.phases(policy, FULL)
    peaks = size.peaks(phases, policy, FULL)
    expected = max(_bytes(peak) for peak in peaks)
    memory = _memory(int(expected * HEADROOM), policy, FULL)
    managed = size.run(phases, memory)
    resident = size.run(size.phases(other, Case(name="resident", offload_state=False), tape="keep"), None)
    rests: list[int] = []
    difference = 0.0
    for index, _ in enumerate(managed.steps(steps)):
        rests.append(memory.arena.pages.backed_bytes + memory.arena.resident_bytes + sum(memory.pool.owners().values()))
        progress.update()
        if index < compared:
            resident.step()
            progress.update()
        if index == compared - 1:
            difference = max(_gaps(policy, other))
    times = [run.trace.step_s(i) for i in range(1, compared) for run in (managed, resident)]
    peak = managed.trace.peak_bytes()
    return {
        "state_bytes": 5 * policy.weights.nbytes,
        "budget_bytes": memory.arena.budget_bytes,
        "predicted_peak_bytes": expected,
        "measured_peak_bytes": peak,
        "peak_ratio": peak / expected,
        "predicted_stages_bytes": {peak.stage: _bytes(peak) for peak in peaks},
        "steps": steps,
        "growth_bytes": max(rests[1:]) - min(rests[1:]),
        "compared_steps": compared,
        "max_weight_difference": difference,
        "time_ratio": middle([m / r for m, r in zip(times[::2], times[1::2], strict=True)]),
        "managed_step_s": middle(times[::2]),
        "resident_step_s": middle(times[1::2]),
        "chunk_bytes": size.chunk_bytes,
        "residency_proven": sorted(managed.trace.check_residency().proven),
    }


def _ablation(size: Size, case: Case, budget_bytes: int) -> dict[str, Any]:
    """One step of a system that lacks something: where it breaks, and where it should."""
    policy = scaled_policy(size.hidden)
    phases = size.phases(policy, case)
    peaks = size.peaks(phases, policy, case)
    over = [peak.stage for peak in peaks if _bytes(peak) > budget_bytes]
    row: dict[str, Any] = {
        "name": case.name,
        "predicted_peak_bytes": max(_bytes(peak) for peak in peaks),
        "predicted_stage": over[0] if over else None,
        "stage": None,
        "step": None,
        "admitted": None,
        "admitted_bytes": None,
    }
    run = size.run(phases, _memory(budget_bytes, policy, case))
    try:
        run.step()
    except OutOfDeviceMemory as error:
        row |= {"stage": _stage(run), "step": run.next_index, "admitted": error.owner, "admitted_bytes": error.nbytes}
    return row


def _memory(budget_bytes: int, policy: Policy, case: Case) -> Memory:
    """A memory whose pool has room for all state, and for the prefix's graph."""
    pool_bytes = 5 * policy.weights.nbytes + (256 << 20)
    return Memory(budget_bytes=budget_bytes, pool_bytes=pool_bytes, release_rollout=case.release_rollout)


def _stage(run: Run) -> str | None:
    """The stage that a broken-off step was in: the first that has a field to fill."""
    filled = () if run.last is None else run.last.filled
    stages = run.timetable().stages
    return next((s.name for s in stages if any(slot.phase.writes not in filled for slot in s.slots)), None)


def _gaps(one: Policy, two: Policy) -> Iterator[float]:
    for a, b in zip(one.weights.tensors, two.weights.tensors, strict=True):
        yield float((a - b).detach().abs().max())


def _bytes(peak: Peak) -> int:
    return round(peak.gib * 2**30)


def text(found: dict[str, Any]) -> str:
    """The result in words."""
    mib = {key: value / 2**20 for key, value in found.items() if key.endswith("_bytes") and isinstance(value, int)}
    sizes = (
        f"state {mib['state_bytes']:.0f} MiB, budget {mib['budget_bytes']:.0f} MiB, peak {mib['measured_peak_bytes']:.1f} "
        f"MiB ({found['peak_ratio']:.3f} of the predicted one)"
    )
    course = (
        f"{found['steps']} steps: growth {found['growth_bytes']} bytes; {found['compared_steps']} compared: largest weight "
        f"difference {found['max_weight_difference']:g}, {found['time_ratio']:.2f}x the time"
    )
    lines = [sizes, course]
    for row in found["ablations"]:
        where = "fits" if row["stage"] is None else f"out of memory in {row['stage']} of step {row['step']}"
        what = (
            ""
            if row["admitted"] is None
            else f", admitting {row['admitted_bytes'] / 2**20:.1f} MiB of {row['admitted']}"
        )
        lines.append(f"  {row['name']:22} {where}{what}; predicted: {row['predicted_stage']}")
    return "\n".join([*lines, ", ".join(f"{name} {'ok' if ok else 'FAILED'}" for name, ok in found["checks"].items())])
