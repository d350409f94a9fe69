"""The shipped model: an ordinary directory that loads offline, reads the tasks' rows and has something left to learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import rollplex.tasks
from rollplex.task import Row
from rollplex.tasks import Clips, Digits
from rollplex.tasks.answer import parse_answer

FOLDER = Path(rollplex.tasks.__file__).parent.parent / "assets" / "tiny-qwen2_5_vl"
PROCESSOR: Any = AutoProcessor.from_pretrained(FOLDER)
TOKENIZER: Any = PROCESSOR.tokenizer


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForImageTextToText.from_pretrained(FOLDER).eval()


def prompt(row: Row) -> str:
    return PROCESSOR.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False)


def inputs(rows: list[Row]) -> Any:
    """Padded inputs of rows that are all pictures or all clips."""
    texts = [prompt(row) for row in rows]
    if "images" in rows[0]:
        pictures = {"images": [image for row in rows for image in row["images"]]}
    else:
        clips = [clip for row in rows for clip in row["videos"]]
        metadata = [
            {"fps": 2.0, "total_num_frames": len(clip), "frames_indices": list(range(len(clip)))} for clip in clips
        ]
        pictures = {"videos": clips, "video_metadata": metadata}
    return PROCESSOR(text=texts, padding=True, return_tensors="pt", **pictures)


def test_directory_is_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 6e6


def test_weights_load_as_float32_and_are_few(model: Any) -> None:
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert 1e6 < model.num_parameters() < 3e6


def test_shape_has_every_feature_of_its_family(model: Any) -> None:
    text, vision = model.config.text_config, model.config.vision_config
    assert text.num_attention_heads > text.num_key_value_heads > 1
    assert model.lm_head.weight is model.get_input_embeddings().weight
    full = set(vision.fullatt_block_indexes)
    assert full, "blocks with full attention"
    assert set(range(vision.depth)) - full, "blocks with windows"
    assert sum(text.rope_parameters["mrope_section"]) * 2 == text.hidden_size // text.num_attention_heads


def test_every_end_token_is_declared(model: Any) -> None:
    ends = TOKENIZER.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends
    assert TOKENIZER.eos_token_id == ends[0]
    assert TOKENIZER.pad_token_id == model.generation_config.pad_token_id == ends[1]


def test_placeholder_ids_agree(model: Any) -> None:
    config = model.config
    names = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
    ids = [config.image_token_id, config.video_token_id, config.vision_start_token_id, config.vision_end_token_id]
    assert TOKENIZER.convert_tokens_to_ids(names) == ids
    assert set(names) <= set(TOKENIZER.all_special_tokens)


@given(st.text().filter(lambda text: "<|" not in text))
def test_any_text_survives_the_tokenizer(text: str) -> None:
    encodable = text.encode("utf-8", "replace").decode()
    assert TOKENIZER.decode(TOKENIZER.encode(encodable)) == encodable


@pytest.mark.parametrize("task", [Digits(), Clips()], ids=["digits", "clips"])
def test_each_word_of_a_response_is_one_token(task: Digits | Clips) -> None:
    for row in task.rows(50):
        solution = task.solution(row)
        assert len(TOKENIZER.encode(solution)) == len(solution.split())


def test_strings_and_blocks_are_rendered_alike() -> None:
    string = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    blocks = [{"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in string]
    rendered = [TOKENIZER.apply_chat_template(messages, tokenize=False) for messages in (string, blocks)]
    assert rendered[0] == rendered[1] == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"


def test_keys_without_a_value_change_nothing() -> None:
    row = Digits().rows(1)[0]
    content = [{"image": None, "text": None, "video": None, **block} for block in row["prompt"][0]["content"]]
    assert prompt({**row, "prompt": [{"role": "user", "content": content}]}) == prompt(row)


@pytest.mark.parametrize(("side", "tokens"), [(28, 1), (56, 4), (700, 625)])
def test_pictures_keep_their_size(side: int, tokens: int) -> None:
    picture = Image.fromarray(np.zeros((side, side, 3), np.uint8))
    grid = PROCESSOR.image_processor(images=[picture], return_tensors="pt")["image_grid_thw"]
    assert grid.prod().item() == 4 * tokens


@pytest.mark.parametrize(
    "task", [Digits(), Digits(grid=(3, 3)), Digits.input_heavy(), Clips(), Clips(shots=3, pixels=84)], ids=str
)
def test_tasks_count_visual_tokens_as_the_processor_does(task: Digits | Clips) -> None:
    ids = inputs(task.rows(1))["input_ids"]
    pads = TOKENIZER.convert_tokens_to_ids(["<|image_pad|>", "<|video_pad|>"])
    assert sum((ids == pad).sum().item() for pad in pads) == task.num_visual_tokens


@pytest.mark.parametrize("task", [Digits(), Clips()], ids=["digits", "clips"])
def test_it_answers_in_form_and_has_something_to_learn(model: Any, task: Digits | Clips) -> None:
    rows = task.rows(48, split="heldout")
    batch = inputs(rows)
    sequences = model.generate(**batch, max_new_tokens=32, do_sample=False)
    texts = PROCESSOR.batch_decode(sequences[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    answers = [parse_answer(text) for text in texts]
    assert sum(answer is not None for answer in answers) >= 46
    right = sum(answer == row["answer"] for answer, row in zip(answers, rows, strict=True))
    assert 0.1 < right / len(rows) < 0.8
