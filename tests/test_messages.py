"""Nothing in a text can pretend to be a picture, and every picture finds its block."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_processor import (
    IMAGE,
    SPECIAL,
    ask,
    blocks,
    clip,
    equal,
    make_config,
    make_directory,
    make_processor,
    picture,
)

import rollplex
from rollplex.ingest import Ingest

ASSET = Path(rollplex.__file__).parent / "assets" / "tiny-qwen2_5_vl"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("processor"))


@pytest.fixture(scope="module", params=["own", "shipped"])
def ingest(request: pytest.FixtureRequest, directory: Path) -> Ingest:
    return Ingest.from_pretrained(directory if request.param == "own" else ASSET)


@pytest.fixture(scope="module")
def tiny(directory: Path) -> Ingest:
    return Ingest.from_pretrained(directory)


@cache
def in_memory() -> Ingest:
    """For hypothesis, which draws many examples inside one test."""
    return Ingest(make_processor(), make_config())


@pytest.mark.parametrize(
    "text", ["<image>", "see <image> here", *SPECIAL, "<|image_pad|><|video_pad|>", "<<|image_pad|>|>"]
)
def test_a_special_token_in_a_text_stays_text(ingest: Ingest, text: str) -> None:
    prompt = ingest.prompt(ask(text, image=picture(28, 28)))
    assert prompt.num_images == 1
    assert (prompt.text_ids == ingest.config.image_token_id).sum() == 1
    bare = ingest.prompt(ask("", image=picture(28, 28)))
    written, template = (ingest.processor.tokenizer.decode(p.text_ids) for p in (prompt, bare))
    assert written.count(text) == template.count(text) + 1
    special = torch.tensor(ingest.processor.tokenizer.all_special_ids)
    assert torch.isin(prompt.text_ids, special).sum() == torch.isin(bare.text_ids, special).sum()


def test_the_tokenizer_alone_would_have_taken_it_for_a_placeholder(tiny: Ingest) -> None:
    assert IMAGE in tiny.processor.tokenizer("<|image_pad|>")["input_ids"]


def test_a_special_token_over_two_text_blocks_stays_text(tiny: Ingest) -> None:
    prompt = tiny.prompt(blocks("<|image_", "pad|>", "image", image=picture(28, 28)))
    assert (prompt.text_ids == IMAGE).sum() == 1


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([*SPECIAL, "<|im", "_start|>", "<|", "|>", "pad", "a", "\ue000", " "]), max_size=6))
def test_no_text_writes_a_special_token(pieces: list[str]) -> None:
    ingest = in_memory()
    prompt = ingest.prompt(blocks(*pieces, "end"))
    template = [SPECIAL.index(token) for token in ("<|im_start|>", "<|im_end|>", "<|im_start|>")]
    assert [i for i in prompt.text_ids.tolist() if i < len(SPECIAL)] == template
    assert "".join(pieces) in ingest.processor.tokenizer.decode(prompt.text_ids)


def test_a_plain_string_is_taken_as_rendered_but_has_no_placeholders(tiny: Ingest) -> None:
    text = "<|im_start|>user\nHello<|im_end|>"
    prompt = tiny.prompt({"prompt": text})
    assert prompt.input_ids.tolist() == tiny.processor(text=text)["input_ids"][0]
    assert prompt.messages == ()
    assert IMAGE not in tiny.prompt({"prompt": "a <|image_pad|>"}).input_ids


def test_a_plain_string_with_pictures_is_refused(tiny: Ingest) -> None:
    with pytest.raises(ValueError, match="plain string as 'prompt' with images"):
        tiny.prompt({"prompt": "What is it?", "images": [picture(28, 28)]})


def test_pictures_are_put_before_the_first_user_text(tiny: Ingest) -> None:
    row = ask("What?", images=[picture(28, 28), picture(56, 28)])
    row["prompt"] = [{"role": "system", "content": "Look."}, *row["prompt"]]
    prompt = tiny.prompt(row)
    assert [block["type"] for block in prompt.messages[1]["content"]] == ["image", "image", "text"]
    assert [block["type"] for block in prompt.messages[0]["content"]] == ["text"]
    assert row["prompt"][1]["content"] == "What?"


def test_a_picture_in_its_block_is_kept(tiny: Ingest) -> None:
    inside = {"prompt": [{"role": "user", "content": [{"type": "image", "image": picture(56, 28)}]}]}
    assert equal(tiny.prompt(inside), tiny.prompt(blocks("image", images=[picture(56, 28)])))


def test_keys_with_none_are_what_a_columnar_file_adds(tiny: Ingest) -> None:
    padded = [{"type": "image", "text": None, "image": None}, {"type": "text", "text": "What?", "image": None}]
    row = {"prompt": [{"role": "user", "content": padded}], "image": None, "images": [picture(28, 28)], "videos": None}
    assert equal(tiny.prompt(row), tiny.prompt(blocks("image", "What?", images=[picture(28, 28)])))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (blocks("image", "image", images=[picture(28, 28)]), "2 image blocks .* 1 images"),
        (blocks("image", images=[picture(28, 28)] * 3), "1 image blocks .* 3 images"),
        (blocks("image", "What?"), "1 image blocks .* 0 images"),
        (blocks("video", "What?"), "1 video blocks .* 0 videos"),
        (blocks("video", videos=[clip(2), clip(2)]), "1 video blocks .* 2 videos"),
    ],
)
def test_a_count_mismatch_is_an_error_with_both_numbers(tiny: Ingest, row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.prompt(row)
