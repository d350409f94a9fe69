"""Tokens per second of the rollout engines, against transformers' ``generate`` on the same prompts and lengths.

Whole rollouts are timed, the prompt's forward included, the engines in turn so that a drifting machine is fair to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from rollplex.bench.floor import middle
from rollplex.bench.workloads import WORKLOADS, Workload
from rollplex.phases.decode import Decode
from rollplex.policy import Policy
from rollplex.prompts import PromptBatch
from rollplex.verify.plain import token_kinds

BATCHES = (8, 32, 64)


def bench(
    *, engines: Sequence[str] = ("torch", "generate"), batches: Sequence[int] = BATCHES, repeats: int = 5
) -> dict[str, Any]:
    """Measure engines by batch size on every workload; ``ratio_to_generate`` above 1 is faster than generate."""
    unknown = [name for name in engines if name not in ENGINES]
    if unknown:
        raise ValueError(f"measuring engines: no engine is called {', '.join(unknown)}; there are {', '.join(ENGINES)}")
    policy = Policy.tiny()
    names = list(dict.fromkeys((*engines, "generate")))
    rows: list[dict[str, Any]] = []
    total = len(WORKLOADS) * len(batches) * (repeats + 1)
    with tqdm(total=total, desc="bench decode", unit="round") as progress:
        for workload in WORKLOADS.values():
            for batch in batches:
                rows += _rows(policy, workload, batch, names, repeats, progress)
    for row in rows:
        print(
            "{workload:>12} batch {batch:>3}  {engine:>9}: {tokens_per_s:9.0f} tokens/s, {ratio_to_generate:5.2f}x".format(
                **row
            )
        )
    return {"rows": [row for row in rows if row["engine"] in engines], "threads": torch.get_num_threads()}


def _rows(
    policy: Policy, workload: Workload, batch: int, names: Sequence[str], repeats: int, progress: tqdm[Any]
) -> list[dict[str, Any]]:
    group = min(workload.group, batch)
    num = batch // group
    prompts = policy.ingest.batch(workload.task.rows(num))
    lengths = torch.full((num, group), workload.max_new_tokens)
    runs = {name: ENGINES[name](policy, prompts, lengths) for name in names}
    times: dict[str, list[float]] = {name: [] for name in names}
    for round_index in range(repeats + 1):  # the first warms up
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if round_index:
                times[name].append(time.perf_counter() - start)
        progress.update()
    tokens = int(lengths.sum())
    return [
        {
            "engine": name,
            "workload": workload.name,
            "batch": batch,
            "tokens_per_s": tokens / middle(times[name]),
            "ratio_to_generate": middle([g / t for g, t in zip(times["generate"], times[name], strict=True)]),
        }
        for name in names
    ]


def torch_engine(policy: Policy, prompts: PromptBatch, lengths: torch.Tensor) -> Callable[[], object]:
    """The built-in engine."""
    longest = int(lengths.max())
    decode = Decode(policy.engine(), group=lengths.shape[1], max_new_tokens=longest, lengths=lengths)
    return lambda: decode(prompts)


def generate(policy: Policy, prompts: PromptBatch, lengths: torch.Tensor) -> Callable[[], object]:
    """transformers' generate, prompts padded on the left, each expanded to its group by generate itself."""
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
    return lambda: module.generate(**inputs, **options)


ENGINES: dict[str, Callable[[Policy, PromptBatch, torch.Tensor], Callable[[], object]]] = {
    "torch": torch_engine,
    "generate": generate,
}
"""What can be measured here."""
