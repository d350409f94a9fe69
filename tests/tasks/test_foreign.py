"""Rows of other trainers: marks become blocks, everything else arrives."""

from typing import Any

import pytest

from rollplex.tasks.foreign import from_easyr1, from_verl


def verl_row(content: str = "Compare <image> and <image>.", **columns: Any) -> dict[str, Any]:
    return {
        "data_source": "toy",
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}],
        "images": ["a", "b"],
        "reward_model": {"style": "rule", "ground_truth": "same"},
        "extra_info": {"index": 3},
        **columns,
    }


def test_marks_become_blocks_in_their_place() -> None:
    content = from_verl(verl_row())["prompt"][1]["content"]
    assert [block["type"] for block in content] == ["text", "image", "text", "image", "text"]
    assert "".join(block.get("text", "|") for block in content) == "Compare | and |."


def test_columns_reach_the_reward() -> None:
    row = from_verl(verl_row())
    assert (row["ground_truth"], row["data_source"], row["extra_info"], row["images"]) == (
        "same",
        "toy",
        {"index": 3},
        ["a", "b"],
    )


def test_a_mark_without_a_picture_stays_text() -> None:
    content = from_verl(verl_row("What does <image> mean in HTML?", images=None))["prompt"][1]["content"]
    assert content == [{"type": "text", "text": "What does <image> mean in HTML?"}]


def test_the_row_given_is_not_changed() -> None:
    row = verl_row()
    from_verl(row)
    assert row == verl_row()


def test_marks_and_pictures_must_match() -> None:
    with pytest.raises(ValueError, match="placing 2 images, found 1"):
        from_verl(verl_row("Only <image>."))


def test_audio_is_refused() -> None:
    with pytest.raises(ValueError, match="audio"):
        from_verl(verl_row(audios=["a.wav"]))


def test_easyr1_rows_are_wrapped_in_the_format_prompt() -> None:
    row = from_easyr1(
        {"problem": "<video>Count {x}.", "answer": "4", "videos": ["v"], "id": 7}, format_prompt="Q: {problem} A:"
    )
    assert row["prompt"][0]["content"] == [
        {"type": "text", "text": "Q: "},
        {"type": "video"},
        {"type": "text", "text": "Count {x}. A:"},
    ]
    assert (row["answer"], row["ground_truth"], row["id"]) == ("4", "4", 7)


def test_easyr1_errors_name_what_is_missing() -> None:
    with pytest.raises(ValueError, match="answer"):
        from_easyr1({"problem": "?"})
    with pytest.raises(ValueError, match="no place"):
        from_easyr1({"problem": "?", "answer": "!"}, format_prompt="Think.")
