"""The peer's side: the same workload through TRL's `GRPOTrainer`, the only file that imports TRL.

Run as ``python -m rollplex.bench.peer_trl WORKLOAD STEPS FILE``. It knows how TRL is set up to do the same work as fast
as it can, and how to make it train on responses that are given. It does not know our phases.

The same work: same checkpoint, rows, rewards, loss, AdamW, responses a prompt and response lengths; visual placeholders
are never drawn, as our engine never draws them. As fast as it can: its own transformers generation with a key/value
cache, one generation a step, no gradient checkpointing, no logging, no saving.
"""

# TRL and datasets are extras: the file is type-checked without them too.
# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

import torch

from rollplex.bench.sides import Answer, serve
from rollplex.bench.workloads import Workload
from rollplex.policy import TINY, Policy

MICROBATCH = MappingProxyType({"default": 32, "default_full": 16, "input_heavy": 16})
"""Responses that TRL trains on at a time: the fastest of 8, 16, 32 and 64. They are generated all at once."""

LEARNING_RATE = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class FirstStep:
    """What TRL made of given responses, before its optimizer ran."""

    loss: float
    """The loss of the step."""
    gradients: dict[str, torch.Tensor]
    """By transformers' parameter names."""


@dataclass(eq=False)
class _Watch:
    """What is noted while TRL trains."""

    ends: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


def peer_version() -> str:
    """TRL's version; an error that says what to install where it is missing."""
    try:
        return version("trl")
    except PackageNotFoundError as error:
        raise ImportError('comparing with TRL: it is not installed. Run: pip install "rollplex[bench]"') from error


def measure(workload: Workload, steps: int) -> Answer:
    """Seconds of every step, the loading of its rows included."""
    watch = _Watch()
    trainer = _trainer(workload, steps, watch)
    watch.ends.append(time.perf_counter())
    trainer.train()
    seconds = [end - start for start, end in zip(watch.ends, watch.ends[1:], strict=False)]
    return {"step_s": seconds, "tokens": watch.tokens}


def first_step(workload: Workload, responses: Sequence[Sequence[int]]) -> FirstStep:
    """Loss and gradients of TRL's first step, where it is given these token ids instead of sampling its own."""
    watch = _Watch()
    _trainer(workload, 1, watch, [list(ids) for ids in responses]).train()
    return FirstStep(loss=sum(watch.losses), gradients=watch.gradients)


def _trainer(workload: Workload, steps: int, watch: _Watch, responses: list[list[int]] | None = None) -> Any:
    warnings.filterwarnings("ignore", category=FutureWarning)
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    class Trainer(GRPOTrainer):
        """TRL's own, noting what came out; ``responses`` replace what it would sample, and nothing else."""

        def _generate_single_turn(self, *args: Any, **options: Any) -> Any:
            made = super()._generate_single_turn(*args, **options) if responses is None else (responses, None)
            watch.tokens.append(sum(map(len, made[0])))
            return made

        def training_step(self, model: Any, *args: Any, **options: Any) -> torch.Tensor:
            loss = super().training_step(model, *args, **options)
            if responses is not None:
                watch.losses.append(float(loss))
                watch.gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            return loss

    class Clock(TrainerCallback):
        """Notes when a step has ended, its optimizer included."""

        def on_step_end(self, *_: Any, **__: Any) -> None:
            watch.ends.append(time.perf_counter())

    rows = [dict(row) for step in range(steps) for row in workload.task.rows(workload.prompts, step=step)]
    rewards: list[Any] = list(workload.rewards)
    with tempfile.TemporaryDirectory(prefix="rollplex-trl-") as folder:
        trainer: Any = Trainer(
            model=str(TINY),
            reward_funcs=rewards,
            args=_config(workload, steps, folder),
            train_dataset=Dataset.from_list(rows),
            callbacks=[Clock()],
        )
    ends = _Ends(workload.lengths().flatten(), trainer.eos_token_ids)
    trainer.model.generate = partial(trainer.model.generate, logits_processor=[ends])
    return trainer


class _Ends:
    """Ends each response at its length and not before: a logits processor of transformers."""

    def __init__(self, lengths: torch.Tensor, eos_ids: Sequence[int]) -> None:
        self.lengths = lengths
        self.eos_ids = list(eos_ids)
        self.num_drawn = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.num_drawn = self.num_drawn % int(self.lengths.max()) + 1  # the next rollout begins where this one ends
        ends = self.lengths <= self.num_drawn
        scores[:, self.eos_ids] = float("-inf")
        scores[ends] = float("-inf")
        scores[ends, self.eos_ids[0]] = 0.0
        return scores


def _config(workload: Workload, steps: int, folder: str) -> Any:
    from trl import GRPOConfig

    microbatch = MICROBATCH.get(workload.name, workload.samples)
    return GRPOConfig(
        output_dir=folder,
        # The same work.
        model_init_kwargs={"dtype": "float32"},
        max_steps=steps,
        num_generations=workload.group,
        max_completion_length=workload.max_new_tokens,
        generation_kwargs={"suppress_tokens": list(Policy.tiny().model.placeholder_ids)},
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        loss_type="dapo",
        scale_rewards="group",
        reward_weights=workload.reward_weights,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        # As fast as it can.
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=workload.samples // microbatch,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        use_cpu=True,
        bf16=False,
        fp16=False,
        use_vllm=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    serve(measure)
