"""Rows become prompts that equal the processor's own, and nothing in a text can pretend to be a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_processor import (
    IMAGE,
    VIDEO,
    ask,
    blocks,
    clip,
    encoded,
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


# Parity with the processor


@pytest.mark.parametrize(
    "row",
    [
        ask("Only text, with ünïcode and\n two lines."),
        ask(image=picture(70, 90)),
        ask(images=[picture(70, 90), picture(300, 27), picture(1, 1)]),
        blocks("image", "and", "image", "differ how?", images=[picture(56, 28), picture(28, 112)]),
        blocks("image", image=picture(56, 28)),
        {"prompt": [{"role": "system", "content": "Be brief."}, *ask("And this?")["prompt"]], "image": picture(28, 28)},
    ],
    ids=["text", "image", "three images", "interleaved", "image alone", "system"],
)
def test_ids_and_pixels_equal_the_processors(ingest: Ingest, row: dict[str, Any]) -> None:
    prompt = ingest.prompt(row)
    made = ingest.processor.apply_chat_template(
        [dict(message) for message in prompt.messages],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    assert prompt.input_ids.tolist() == made["input_ids"][0].tolist()
    if prompt.num_images:
        assert torch.equal(prompt.pixel_values, made["pixel_values"])
        assert torch.equal(prompt.image_grid_thw, made["image_grid_thw"])


@pytest.mark.parametrize("num_frames", [1, 3, 4])
def test_a_video_equals_the_processors(ingest: Ingest, num_frames: int) -> None:
    frames = clip(num_frames)
    prompt = ingest.prompt(ask(videos=[frames]))
    text = ingest.processor.apply_chat_template(prompt.messages, add_generation_prompt=True, tokenize=False)
    made = ingest.processor(text=text, videos=[frames], return_tensors="pt")
    assert prompt.input_ids.tolist() == made["input_ids"][0].tolist()
    assert torch.equal(prompt.pixel_values_videos, made["pixel_values_videos"])
    assert torch.equal(prompt.video_grid_thw, made["video_grid_thw"])
    assert torch.equal(torch.tensor(prompt.second_per_grid_ts), made["second_per_grid_ts"])


def test_text_ids_have_one_placeholder_for_each_picture(ingest: Ingest) -> None:
    prompt = ingest.prompt(blocks("image", "then", "video", "?", images=[picture(56, 56)], videos=[clip(4)]))
    image, video = ingest.config.image_token_id, ingest.config.video_token_id
    assert [(prompt.text_ids == token).sum().item() for token in (image, video)] == [1, 1]
    assert [(prompt.input_ids == token).sum().item() for token in (image, video)] == [4, 4]


# Positions, videos and pixels


def test_positions_go_with_the_expanded_ids(ingest: Ingest) -> None:
    prompt = ingest.prompt(ask(image=picture(140, 56)))
    assert prompt.positions.shape == (3, prompt.length)
    assert prompt.next_position == prompt.positions.max() + 1
    assert prompt.next_position == prompt.length - 10 + 5


def test_frames_per_second_reach_the_positions(tiny: Ingest) -> None:
    temporal = {fps: tiny.prompt(ask(videos=[clip(4)], fps=fps)).positions[0].max().item() for fps in (1.0, 0.1)}
    assert temporal[0.1] > temporal[1.0]
    assert tiny.prompt(ask(videos=[clip(4)], fps=4)).second_per_grid_ts == (0.5,)
    assert tiny.prompt(ask(videos=[clip(2)] * 2, fps=[1, 4])).second_per_grid_ts == (2.0, 0.5)
    assert tiny.prompt(ask(videos=[clip(4)], second_per_grid_ts=0.25)).second_per_grid_ts == (0.25,)


@pytest.mark.parametrize(
    "columns", [{"fps": 0}, {"fps": "2"}, {"fps": [1, 2]}, {"fps": float("nan")}, {"fps": 1, "second_per_grid_ts": 1}]
)
def test_bad_times_are_errors(tiny: Ingest, columns: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"timing .*videos"):
        tiny.prompt(ask(videos=[clip(2)], **columns))


def test_frames_of_any_small_width_keep_their_layout(tiny: Ingest) -> None:
    narrow = [Image.new("RGB", (3, 3), (255, 0, 0))] * 2
    wide = [Image.new("RGB", (28, 28), (255, 0, 0))] * 2
    first, second = (tiny.prompt(ask(videos=[frames])) for frames in (narrow, wide))
    assert torch.equal(first.pixel_values_videos, second.pixel_values_videos)


@pytest.mark.parametrize(
    ("videos", "message"),
    [
        ([[]], "0 frames"),
        ([[picture(28, 28), picture(28, 56)]], "one size"),
        ([picture(28, 28)], "found Image"),
        (clip(2), "Image"),
    ],
)
def test_bad_videos_are_errors(tiny: Ingest, videos: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.prompt(ask(videos=videos))


def test_equal_pixels_have_equal_hashes_on_every_path(tiny: Ingest, tmp_path: Path) -> None:
    image = picture(56, 28)
    path = tmp_path / "picture.png"
    image.save(path)
    see_through = image.convert("RGBA")
    rows = [ask(image=source) for source in (image, path, path.read_bytes(), see_through)]
    assert len({tiny.prompt(row).pixel_hash for row in rows}) == 1
    assert tiny.prompt(ask(image=picture(56, 28, seed=1))).pixel_hash != tiny.prompt(rows[0]).pixel_hash


def test_hidden_colours_do_not_reach_the_pixels(tiny: Ingest) -> None:
    hidden = tiny.prompt(ask(image=Image.new("RGBA", (28, 28), (255, 0, 0, 0))))
    assert torch.equal(hidden.pixel_values, tiny.prompt(ask(image=Image.new("RGB", (28, 28), "white"))).pixel_values)


def test_orientation_decides_the_grid(tiny: Ingest) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = tiny.prompt(ask(image=encoded(picture(84, 56), "JPEG", exif=exif)))
    assert turned.image_grid_thw.tolist() == [[1, 6, 4]]


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (28, 28), (332, 27), (5600, 28), (2000, 1500)])
def test_pictures_of_any_size_report_their_tokens(tiny: Ingest, size: tuple[int, int]) -> None:
    prompt = tiny.prompt(ask(image=Image.new("RGB", size)))
    assert (prompt.input_ids == IMAGE).sum() == prompt.image_grid_thw.prod() // 4
    assert prompt.pixel_values.shape == (prompt.image_grid_thw.prod(), 3 * 2 * 14 * 14)


def test_a_prompt_without_pictures_has_empty_tensors_of_the_right_width(tiny: Ingest) -> None:
    prompt = tiny.prompt(ask())
    assert prompt.pixel_values.shape == prompt.pixel_values_videos.shape == (0, 1176)
    assert prompt.image_grid_thw.shape == prompt.video_grid_thw.shape == (0, 3)
    assert torch.equal(prompt.input_ids, prompt.text_ids)


def test_an_assistant_prefix_is_continued(tiny: Ingest) -> None:
    row = ask("Two plus two?")
    row["prompt"] += [{"role": "assistant", "content": "It is"}]
    assert tiny.processor.tokenizer.decode(tiny.prompt(row).input_ids).endswith("assistant\nIt is")


def test_the_row_travels_with_its_prompt(tiny: Ingest) -> None:
    row = ask(answer=7)
    assert tiny.prompt(row).row is row


# Batches


def mixed() -> list[dict[str, Any]]:
    return [
        ask(images=[picture(56, 28), picture(28, 504)]),
        ask("No picture."),
        ask(images=[picture(28, 28, s) for s in range(3)]),
        ask(videos=[clip(4)]),
    ]


def test_a_row_does_not_depend_on_the_other_rows(tiny: Ingest) -> None:
    rows = mixed()
    forward, backward = tiny.batch(rows), tiny.batch(rows[::-1])
    assert [prompt.num_images for prompt in forward] == [2, 0, 3, 0]
    for prompt, permuted, row in zip(forward, reversed(backward.prompts), rows, strict=True):
        assert equal(prompt, permuted)
        assert equal(prompt, tiny.prompt(row))


def test_a_batch_says_where_it_comes_from(tiny: Ingest) -> None:
    batch = tiny.batch([ask()], step=3, seed=5)
    assert (batch.step, batch.seed, batch.refused) == (3, 5, ())


def test_a_prompt_over_the_limit_is_refused_with_a_count_and_never_cut(tiny: Ingest) -> None:
    whole = tiny.batch(mixed())
    limit = whole[1].length
    batch = tiny.batch(mixed(), max_prompt_length=limit)
    assert [prompt.length for prompt in batch] == [p.length for p in whole if p.length <= limit]
    assert [refusal.index for refusal in batch.refused] == [i for i, p in enumerate(whole) if p.length > limit]
    reason = batch.refused[0].reason
    assert f"found {whole[0].length} tokens" in reason
    assert "20 visual in grids [(1, 2, 4), (1, 36, 2)]" in reason
    assert f"limit {limit}" in reason


def test_a_prompt_at_the_limit_is_kept(tiny: Ingest) -> None:
    assert len(tiny.batch([ask()], max_prompt_length=tiny.prompt(ask()).length)) == 1


BAD_ROWS: dict[str, dict[str, Any]] = {
    "cut file": ask(image=encoded(picture(64, 64))[:500]),
    "empty file": ask(image=b""),
    "missing path": ask(image="no/such/file.png"),
    "too long": ask(image=Image.new("RGB", (5628, 28))),
    "image is a list": ask(image=[picture(28, 28)]),
    "images is one picture": ask(images=picture(28, 28)),
    "both columns": ask(image=picture(28, 28), images=[picture(28, 28)]),
    "no prompt": {"messages": []},
    "no messages": {"prompt": []},
    "prompt of strings": {"prompt": ["What?"]},
    "role": {"prompt": [{"role": "human", "content": "What?"}]},
    "no content": {"prompt": [{"role": "user"}]},
    "block type": {"prompt": [{"role": "user", "content": [{"type": "audio"}]}]},
    "block key": {"prompt": [{"role": "user", "content": [{"type": "image", "url": "http://x"}]}]},
    "block is a string": {"prompt": [{"role": "user", "content": ["What?"]}]},
    "text is a number": {"prompt": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
    "no user": {"prompt": [{"role": "system", "content": "Look."}], "image": picture(28, 28)},
    "empty string": {"prompt": ""},
}


@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=list(BAD_ROWS))
def test_a_bad_row_raises_with_its_index_and_can_be_collected_instead(tiny: Ingest, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^row 1"):
        tiny.batch([ask(), row])
    batch = tiny.batch([ask(), row, ask("More?")], bad_rows="refuse")
    assert [refusal.index for refusal in batch.refused] == [1]
    assert len(batch) == 2


@pytest.mark.parametrize(("rows", "message"), [([], "0 rows"), ([ask("long " * 20)], "1 refused.*row 0.*limit 5")])
def test_a_batch_without_prompts_is_an_error(tiny: Ingest, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny.batch(rows, max_prompt_length=5)


def test_an_unknown_policy_for_bad_rows_is_an_error(tiny: Ingest) -> None:
    with pytest.raises(ValueError, match="bad_rows='skip'"):
        tiny.batch([ask()], bad_rows="skip")  # pyright: ignore[reportArgumentType]


# Processor and model must belong together


@pytest.mark.parametrize("vision", [{"patch_size": 16}, {"spatial_merge_size": 1}, {"temporal_patch_size": 1}])
def test_a_processor_of_another_model_is_refused(vision: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"in the processor and \d+ for the model"):
        Ingest(make_processor(), make_config(**vision))


def test_other_placeholder_ids_are_refused() -> None:
    config = make_config()
    config.image_token_id = VIDEO
    with pytest.raises(ValueError, match="image_token_id"):
        Ingest(make_processor(), config)


def test_a_template_that_drops_pictures_is_an_error() -> None:
    processor = make_processor()
    processor.chat_template = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    with pytest.raises(ValueError, match="0 image placeholders for 1 image blocks"):
        Ingest(processor, make_config()).prompt(ask(image=picture(28, 28)))


def test_a_template_that_objects_names_the_row() -> None:
    processor = make_processor()
    processor.chat_template = "{{ raise_exception('no system prompts here') }}"
    with pytest.raises(ValueError, match=r"^row 0: .*no system prompts here"):
        Ingest(processor, make_config()).batch([ask()])
