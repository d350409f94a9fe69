"""Rows of verl and EasyR1 in TRL's form.

Both mark a picture's place by ``<image>`` or ``<video>`` inside text; here, once, the marks become structured content.
A mark without a picture behind it stays text: data sets do contain the word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollplex.task import Row

MARK = re.compile(r"<(image|video)>")


def from_verl(row: Mapping[str, Any]) -> dict[str, Any]:
    """A verl row as a TRL row: marks become blocks, ``reward_model["ground_truth"]`` becomes ``ground_truth``.

    Every other column is kept, so that `data_source` and `extra_info` reach a reward function.

    >>> row = from_verl({
    ...     "data_source": "geo3k",
    ...     "prompt": [{"role": "user", "content": "<image>Find x."}],
    ...     "images": ["figure.png"],
    ...     "reward_model": {"style": "rule", "ground_truth": "3"},
    ... })
    >>> row["prompt"][0]["content"], row["ground_truth"]
    ([{'type': 'image'}, {'type': 'text', 'text': 'Find x.'}], '3')
    """
    if "prompt" not in row:
        raise ValueError(
            f"from_verl: reading a row, found columns {sorted(row)}. A verl row has a 'prompt' of messages."
        )
    if row.get("audios"):
        raise ValueError("from_verl: reading a row, found audio. Rollplex trains on images and videos: drop the row.")
    kept = {key: value for key, value in row.items() if key not in ("prompt", "reward_model", "audios")}
    truth = row.get("reward_model", {}).get("ground_truth")
    return {"prompt": _structured(row["prompt"], row, "from_verl"), **kept, "ground_truth": truth}


def from_easyr1(row: Mapping[str, Any], *, format_prompt: str = "{problem}") -> dict[str, Any]:
    """An EasyR1 row as a TRL row: ``problem`` becomes the user's message, ``answer`` also ``ground_truth``.

    ``format_prompt`` stands for EasyR1's template file: text with ``{problem}`` where the problem goes.

    >>> row = from_easyr1({"problem": "<image>How many?", "answer": "4", "images": ["cubes.png"]},
    ...                   format_prompt="{problem} Think first.")
    >>> row["prompt"][0]["content"], row["ground_truth"]
    ([{'type': 'image'}, {'type': 'text', 'text': 'How many? Think first.'}], '4')
    """
    missing = {"problem", "answer"} - set(row)
    if missing:
        raise ValueError(
            f"from_easyr1: reading a row, found columns {sorted(row)} without {sorted(missing)}. "
            "Rename the columns that hold the question and the answer."
        )
    if "{problem}" not in format_prompt:
        raise ValueError(
            f"from_easyr1: reading format_prompt={format_prompt!r}, found no place for the question. Write {{problem}} there."
        )
    message = {"role": "user", "content": format_prompt.replace("{problem}", row["problem"])}
    kept = {key: value for key, value in row.items() if key != "problem"}
    return {"prompt": _structured([message], row, "from_easyr1"), **kept, "ground_truth": row["answer"]}


def _structured(messages: Sequence[Mapping[str, Any]], row: Row, doing: str) -> list[dict[str, Any]]:
    """Messages whose marks of the kinds that the row has pictures for are blocks."""
    given = {"image": len(row.get("images") or ()), "video": len(row.get("videos") or ())}
    structured = [{**m, "content": list(_blocks(m["content"], given))} for m in messages]
    for kind, num in given.items():
        marks = sum(block["type"] == kind for message in structured for block in message["content"])
        if num and marks != num:
            raise ValueError(
                f"{doing}: placing {num} {kind}s, found {marks} <{kind}> marks in the text. Give one mark for each {kind}."
            )
    return structured


def _blocks(content: str | Sequence[Mapping[str, Any]], given: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    if not isinstance(content, str):
        yield from (dict(block) for block in content)
        return
    start = 0
    for mark in MARK.finditer(content):
        kind = mark[1]
        if not given[kind]:
            continue
        if content[start : mark.start()]:
            yield {"type": "text", "text": content[start : mark.start()]}
        yield {"type": kind}
        start = mark.end()
    if content[start:] or start == 0:
        yield {"type": "text", "text": content[start:]}
