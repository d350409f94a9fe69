"""Tokens per second of the rollout engines, against transformers' ``generate`` on the same prompts and lengths.

Whole rollouts are timed, the prompt's forward included, the engines in turn so that a drifting machine is fair to all.
Each decodes with the policy's weights as it does in training: vLLM's caches are emptied before every rollout.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from rollplex.bench.floor import middle
from rollplex.bench.workloads import WORKLOADS, Workload
from rollplex.engines.engine import Engine
from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.verify.plain import token_kinds

BATCHES = (8, 32, 64)

Timed = Callable[[], object]
"""Decodes once."""
Side = Callable[[PromptBatch, torch.Tensor], Timed]
"""An engine that is ready: prompts and forced lengths ``[prompts, group]`` become a rollout to time."""


def bench(
    *, engines: Sequence[str] = ("torch", "generate"), batches: Sequence[int] = BATCHES, repeats: int = 5
) -> dict[str, Any]:
    """Measure engines by batch size on every workload.

    ``ratio_to_generate`` above 1 is faster than generate; ``ratio_to_vllm`` is there where vLLM is measured too.
    """
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise ValueError(f"measuring engines: no engine is called {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    policy = Policy.tiny()
    names = list(dict.fromkeys((*engines, "generate")))
    rows: list[dict[str, Any]] = []
    total = len(WORKLOADS) * len(batches) * (repeats + 1)
    with ExitStack() as opened, tqdm(total=total, desc="bench decode", unit="round") as progress:
        sides = {name: opened.enter_context(ENGINES[name](policy)) for name in names}
        for workload in WORKLOADS.values():
            for batch in batches:
                rows += _rows(policy, workload, batch, sides, repeats, progress)
    for row in rows:
        ratios = ", ".join(f"{row[key]:5.2f}x {key[9:]}" for key in row if key.startswith("ratio_to_"))
        print("{workload:>12} batch {batch:>3}  {engine:>9}: {tokens_per_s:9.0f} tokens/s, ".format(**row) + ratios)
    return {"rows": [row for row in rows if row["engine"] in engines], "threads": torch.get_num_threads()}


def _rows(
    policy: Policy, workload: Workload, batch: int, sides: dict[str, Side], repeats: int, progress: tqdm[Any]
) -> list[dict[str, Any]]:
    group = min(workload.group, batch)
    num = batch // group
    prompts = policy.ingest.batch(workload.task.rows(num))
    lengths = torch.full((num, group), workload.max_new_tokens)
    rollouts = {name: side(prompts, lengths) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for round_index in range(repeats + 1):  # the first warms up
        for name, rollout in rollouts.items():
            start = time.perf_counter()
            rollout()
            if round_index:
                times[name].append(time.perf_counter() - start)
        progress.update()
    tokens = int(lengths.sum())
    references = [name for name in ("generate", "vllm") if name in sides]
    return [
        {
            "engine": name,
            "workload": workload.name,
            "batch": batch,
            "tokens_per_s": tokens / middle(times[name]),
            **{f"ratio_to_{other}": _ratio(times[other], times[name]) for other in references},
        }
        for name in sides
    ]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """How many times faster, as the middle of the rounds."""
    return middle([a / b for a, b in zip(theirs, ours, strict=True)])


@contextmanager
def torch_engine(policy: Policy) -> Generator[Side]:
    """The built-in engine."""
    yield lambda prompts, lengths: _decode(policy.engine(), prompts, lengths)


@contextmanager
def vllm_engine(policy: Policy) -> Generator[Side]:
    """vLLM on the same weights, open for as long as it is measured."""
    from rollplex.engines.vllm_engine import VllmEngine

    with VllmEngine(policy, kv_bytes=2**28) as engine:
        yield partial(_decode, engine)


def _decode(engine: Engine, prompts: PromptBatch, lengths: torch.Tensor) -> Timed:
    decode = Decode(engine, group=lengths.shape[1], max_new_tokens=int(lengths.max()), lengths=lengths)
    return partial(decode, prompts)


@contextmanager
def generate(policy: Policy) -> Generator[Side]:
    """transformers' generate, prompts padded on the left, each expanded to its group by generate itself."""
    yield partial(_generate, policy)


def _generate(policy: Policy, prompts: PromptBatch, lengths: torch.Tensor) -> Timed:
    module: Any = policy.model.module
    longest = max(prompt.length for prompt in prompts)

    def left(values: torch.Tensor, fill: int) -> torch.Tensor:
        return nn.functional.pad(values, (longest - len(values), 0), value=fill)

    inputs: dict[str, Any] = {
        "input_ids": torch.stack([left(p.input_ids, policy.model.pad_id) for p in prompts]),
        "attention_mask": torch.stack([left(torch.ones_like(p.input_ids), 0) for p in prompts]),
        "mm_token_type_ids": torch.stack([left(token_kinds(module, p), 0) for p in prompts]),
        "pixel_values": torch.cat([p.pixel_values for p in prompts]),
        "image_grid_thw": torch.cat([p.image_grid_thw for p in prompts]),
    }
    tokens = int(lengths.max())
    options: dict[str, Any] = {
        "do_sample": True,
        "top_k": 0,
        "min_new_tokens": tokens,
        "max_new_tokens": tokens,
        "num_return_sequences": lengths.shape[1],
        "suppress_tokens": list(policy.model.placeholder_ids),
        "pad_token_id": policy.model.pad_id,
    }
    return partial(module.generate, **inputs, **options)


ENGINES: dict[str, Callable[[Policy], AbstractContextManager[Side]]] = {
    "torch": torch_engine,
    "generate": generate,
    "vllm": vllm_engine,
}
"""What can be measured here."""
