"""Make the shipped model: a Qwen2.5-VL of 2.5 million parameters, warm-started on the tasks and stopped early.

``python scripts/make_tiny_model.py`` writes ``rollplex/assets/tiny-qwen2_5_vl``, a normal Hugging Face directory. The warm
start is plain supervised training on reference responses, with the loss on response tokens only. It goes from one digit to
many, because a model that must find its digits before it can see one learns neither for a long time. It stops early, and
its last steps mix in answers that come at once, with nothing between the think tags: the answers are right, but a model of
this size cannot find them that way. So it starts out answering at once more often than not, most of its answers are wrong,
and reinforcement learning has something to find: that reading the digits first pays.

Knows transformers, the tasks and how the directory is written. Does not know policies, engines or phases.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_card import card
from tiny_parts import END, SPECIAL, STOP, make_config, make_processor
from transformers import BatchFeature, GenerationConfig, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

from rollplex.task import Row, Split
from rollplex.tasks.answer import parse_answer
from rollplex.tasks.clips import Clips
from rollplex.tasks.digits import Digits

OUT = Path(__file__).parent.parent / "rollplex" / "assets" / "tiny-qwen2_5_vl"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Digits given as text instead of a picture: the reasoning without the seeing, at a fraction of the cost."""

    digits: Digits

    def rows(self, num: int, *, step: int = 0, split: Split = "train") -> list[Row]:
        """The same questions, with the digits in front."""
        return [self._as_text(row) for row in self.digits.rows(num, step=step, split=split)]

    def solution(self, row: Row) -> str:
        """The same reference response."""
        return self.digits.solution(row)

    def _as_text(self, row: Row) -> Row:
        listed = "".join(f" {digit}" for digit in row["digits"])
        question = row["prompt"][0]["content"][-1]["text"]
        message = {"role": "user", "content": f"{listed} ; {question}"}
        return {key: value for key, value in row.items() if key != "images"} | {"prompt": [message]}


Task = Digits | Clips | Listed


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A mixture of tasks, trained on from a step to the start of the next stage."""

    start: int
    """First step of the stage."""
    mix: tuple[tuple[Task, int], ...]
    """Tasks, each with its rows in a batch."""

    def rows(self, step: int) -> list[tuple[Row, str]]:
        """Rows of one step with their reference responses."""
        return [(row, task.solution(row)) for task, num in self.mix for row in task.rows(num, step=step)]


# Seeds that no example and no test uses; held-out handwriting is out of reach of every seed.
LISTED = Listed(digits=Digits(seed=2008, cell=28))
SUMS = Listed(digits=Digits(seed=2009, cell=28, questions=("sum",)))
ONE, DEFAULT = Digits(seed=2010, digits=1, grid=(1, 1)), Digits(seed=2011)
SMALL = Digits(seed=2012, grid=(2, 2))
STAGES = (
    Stage(start=0, mix=((SUMS, 24), (LISTED, 12), (ONE, 12))),
    Stage(start=120, mix=((SUMS, 14), (LISTED, 6), (ONE, 6), (SMALL, 8))),
    Stage(
        start=240,
        mix=(
            (SUMS, 8),
            (LISTED, 4),
            (SMALL, 12),
            (Digits(seed=2013, grid=(3, 3)), 2),
            (DEFAULT, 4),
            (Clips(seed=2014), 4),
        ),
    ),
)


LOGIT_PENALTY, NOISE_PENALTY, WEIGHT_DECAY = 1e-2, 0.1, 0.3
"""Weights in the loss of the mean squared logit and of the divergence from undecided, and AdamW's decay."""
QUICK_STEPS, QUICK_SHARE, QUICK_RATE = 80, 0.6, 5e-4
"""The last steps, the share of their responses that answer at once, and their learning rate."""


def quick(row: Row) -> str:
    """The right answer, at once.

    >>> quick({"answer": "7"})
    '<think> </think> <answer> 7 </answer>'
    """
    return f"<think> </think> <answer> {row['answer']} </answer>"


def batch_of(processor: Qwen2_5_VLProcessor, rows: Sequence[Row], responses: Sequence[str] = ()) -> BatchFeature:
    """Padded inputs: prompts alone, padded on the left, or prompts with responses and labels, padded on the right."""
    prompts = [processor.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False) for row in rows]
    pictures: dict[str, Any] = {}
    if images := [image for row in rows for image in row.get("images", ())]:
        pictures["images"] = images
    if videos := [(video, row["fps"]) for row in rows for video in row.get("videos", ())]:
        pictures["videos"] = [video for video, _ in videos]
        pictures["video_metadata"] = [
            {"fps": fps, "total_num_frames": len(video), "frames_indices": list(range(len(video)))}
            for video, fps in videos
        ]
    if not responses:
        return processor(text=prompts, padding=True, padding_side="left", return_tensors="pt", **pictures)
    texts = [f"{prompt}{response}<|im_end|>" for prompt, response in zip(prompts, responses, strict=True)]
    batch = processor(text=texts, padding=True, padding_side="right", return_tensors="pt", **pictures)
    lengths = batch["attention_mask"].sum(1)
    sizes = torch.tensor([len(processor.tokenizer.encode(response)) + 1 for response in responses])
    places = torch.arange(int(lengths.max()))
    scored = (places >= (lengths - sizes)[:, None]) & (places < lengths[:, None])
    batch["labels"] = batch["input_ids"].masked_fill(~scored, -100)
    return batch


def with_noise(batch: BatchFeature, num_words: int) -> tuple[BatchFeature, torch.Tensor]:
    """The batch with random words instead of padding, and where they are."""
    after = batch["attention_mask"] == 0
    words = torch.randint(len(SPECIAL), num_words, after.shape)
    batch["input_ids"] = torch.where(after, words, batch["input_ids"])
    batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    return batch, after


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a model answers held-out rows."""

    accuracy: float
    """Share of right answers."""
    form: float
    """Share of responses that end by themselves and hold one answer."""
    median_length: int
    """Median of the sampled tokens, the end included."""


@torch.no_grad()
def evaluate(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, task: Task, *, num: int, sample: bool
) -> Score:
    """Answer held-out rows greedily, or by sampling at temperature 1."""
    rows = task.rows(num, split="heldout")
    batch = batch_of(processor, rows)
    draw = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    torch.manual_seed(0)
    model.eval()
    sequences = model.generate(**batch, max_new_tokens=48, **draw)
    model.train()
    tokens = sequences[:, batch["input_ids"].shape[1] :]
    texts = processor.batch_decode(tokens, skip_special_tokens=True)
    ended = (tokens == STOP).any(1)
    lengths = torch.where(ended, (tokens == STOP).int().argmax(1) + 1, tokens.shape[1])
    answers = [parse_answer(text) for text in texts]
    return Score(
        accuracy=sum(answer == row["answer"] for answer, row in zip(answers, rows, strict=True)) / num,
        form=sum(answer is not None and bool(end) for answer, end in zip(answers, ended, strict=True)) / num,
        median_length=int(lengths.median()),
    )


def losses(model: Qwen2_5_VLForConditionalGeneration, batch: BatchFeature) -> tuple[torch.Tensor, torch.Tensor]:
    """Cross-entropy of the response tokens, and what keeps the model calm.

    A model this small is soon very sure of itself, after nonsense too, and float32 then cannot tell two correct
    implementations of it apart from two that differ. So its logits are kept small, and random words that follow a
    response must leave it undecided.
    """
    batch, after = with_noise(batch, model.config.text_config.vocab_size)
    output = model(**batch)
    logits = output.logits[:, :-1][batch["labels"][:, 1:] != -100]
    undecided = output.logits[after].log_softmax(-1).mean(-1)
    return output.loss, LOGIT_PENALTY * logits.square().mean() - NOISE_PENALTY * undecided.mean()


def learn(model: Qwen2_5_VLForConditionalGeneration, optimizer: torch.optim.Optimizer, batch: BatchFeature) -> float:
    """One step on a batch; the cross-entropy before it."""
    loss, penalty = losses(model, batch)
    (loss + penalty).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def train(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, *, steps: int, learning_rate: float
) -> Iterator[tuple[int, float]]:
    """Supervised training through the stages; yields each step and the loss before it."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True
    )
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.02, 1.0, 50)
    for step in range(steps):
        stage = [stage for stage in STAGES if stage.start <= step][-1]
        rows, responses = zip(*stage.rows(step), strict=True)
        yield step, learn(model, optimizer, batch_of(processor, rows, responses))
        warmup.step()


def train_quick(
    model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor
) -> Iterator[tuple[int, float]]:
    """The last stage's rows, most of them with an answer at once; yields each step and the loss before it."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=QUICK_RATE, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY, fused=True
    )
    draw = random.Random(0)
    for step in range(QUICK_STEPS):
        pairs = STAGES[-1].rows(1000 + step)
        responses = [quick(row) if draw.random() < QUICK_SHARE else solution for row, solution in pairs]
        yield step, learn(model, optimizer, batch_of(processor, [row for row, _ in pairs], responses))


def save(model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, out: Path) -> None:
    """Write the directory: weights rounded to bfloat16, so that it stays small, and loaded as float32."""
    rounded = Qwen2_5_VLForConditionalGeneration(model.config).to(torch.bfloat16)
    rounded.load_state_dict(model.state_dict())
    rounded.generation_config = model.generation_config
    rounded.save_pretrained(out)
    processor.save_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float32"
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in out.iterdir():
        file.chmod(0o644)


def score_table(out: Path, num: int) -> list[str]:
    """Scores of the directory as it was written, one line of the table each."""
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(out)
    processor = Qwen2_5_VLProcessor.from_pretrained(out)
    lines = []
    for task in (Digits(), Clips()):
        for sample in (False, True):
            score = evaluate(model, processor, task, num=num, sample=sample)
            how = "sampled at temperature 1" if sample else "greedy"
            numbers = f"{score.accuracy:.3f} | {score.form:.3f} | {score.median_length}"
            lines.append(f"| {num} of `{type(task).__name__}()` | {how} | {numbers} |")
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Train, write the directory, score what was written."""
    parser = argparse.ArgumentParser(description="Make the shipped tiny Qwen2.5-VL.")
    parser.add_argument("--out", type=Path, default=OUT, help="directory to write")
    parser.add_argument("--steps", type=int, default=650, help="training steps: more make a better model to start from")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    processor = make_processor()
    model = Qwen2_5_VLForConditionalGeneration(make_config(len(processor.tokenizer)))
    model.generation_config = GenerationConfig(eos_token_id=[STOP, END], pad_token_id=END)
    start = time.monotonic()
    for step, loss in train(model, processor, steps=options.steps, learning_rate=options.learning_rate):
        if step % 50:
            continue
        small, default = (evaluate(model, processor, task, num=128, sample=False) for task in (SMALL, DEFAULT))
        scores = f"accuracy {small.accuracy:.3f} small, {default.accuracy:.3f} default"
        print(f"step {step}  {time.monotonic() - start:.0f} s  loss {loss:.3f}  {scores}", flush=True)
    save(model, processor, options.out)
    # From what was written: the last steps start at the rounded weights.
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(options.out)
    model.train()
    for step, loss in train_quick(model, processor):
        if step % 20 == 19:
            print(f"quick step {step}  {time.monotonic() - start:.0f} s  loss {loss:.3f}", flush=True)
    save(model, processor, options.out)
    command = f"python scripts/make_tiny_model.py --steps {options.steps} --seed {options.seed}"
    table = score_table(options.out, num=512)
    (options.out / "README.md").write_text(
        card(model, table, command=command, steps=options.steps, quick=QUICK_STEPS, share=QUICK_SHARE)
    )


if __name__ == "__main__":
    main()
