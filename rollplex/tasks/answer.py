"""The form of a response, and the rule that scores it.

A response thinks, then answers: ``<think> 3 : 3 , 7 : 10 , 2 : 12 </think> <answer> 12 </answer>``. Each digit is followed by
what is known once it has been read, here the sum so far. Knows text only; what the right answer is comes with the row.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Completion = str | Sequence[Mapping[str, Any]]
"""A response as text, or as TRL's conversational form ``[{"role", "content"}]``."""

ANSWER = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def response(digits: Sequence[int], working: Sequence[int]) -> str:
    """The text of a response: digits in order, each with the result so far; the last result is the answer.

    >>> response([3, 7, 2], [3, 10, 12])
    '<think> 3 : 3 , 7 : 10 , 2 : 12 </think> <answer> 12 </answer>'
    """
    thought = " , ".join(f"{digit} : {so_far}" for digit, so_far in zip(digits, working, strict=True))
    return f"<think> {thought} </think> <answer> {working[-1]} </answer>"


def text_of(completion: Completion) -> str:
    """The text of a completion in either of its forms.

    >>> text_of([{"role": "assistant", "content": "<answer> 7 </answer>"}])
    '<answer> 7 </answer>'
    """
    if isinstance(completion, str):
        return completion
    return "".join(_content_text(message["content"]) for message in completion)


def _content_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join(block["text"] for block in content if block["type"] == "text")


def parse_answer(text: str) -> str | None:
    """What stands between the answer tags; None unless there is exactly one answer.

    >>> parse_answer("<think> 3 7 </think> <answer> 7 </answer>")
    '7'
    >>> parse_answer("<answer> 7 </answer> <answer> 8 </answer>") is None
    True
    """
    found = ANSWER.findall(text)
    return found[0] if len(found) == 1 else None


def correct_answer(*, completions: Sequence[Completion], answer: Sequence[str], **columns: Any) -> list[float | None]:
    """Reward 1 for the right answer in its tags and 0 for anything else.

    >>> correct_answer(completions=["<answer> 7 </answer>", "7"], answer=["7", "7"])
    [1.0, 0.0]
    """
    return [float(parse_answer(text_of(c)) == a) for c, a in zip(completions, answer, strict=True)]
