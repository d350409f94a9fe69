"""A row's conversation with every picture in its place: structured content, never markers in text.

This file knows TRL's row form and what must stay text. It does not know tokenisers, patches or models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, groupby, pairwise
from typing import Any

from PIL import Image

from rollplex.images import to_rgb
from rollplex.task import Row

ROLES = ("system", "user", "assistant", "tool")

Block = dict[str, Any]
"""``{"type": "text", "text": str}``, ``{"type": "image", "image": PIL}`` or ``{"type": "video", "video": [PIL]}``."""

PRIVATE_USE = 0xE000
"""First of the code points that Unicode gives no meaning: where `unused_mark` starts to look."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Conversation:
    """Messages whose content is a list of blocks, and the pictures in the order of their blocks."""

    messages: tuple[Mapping[str, Any], ...]
    """``{"role", "content": [Block]}`` and any further keys of the row's messages."""
    images: tuple[Image.Image, ...]
    """Upright RGB pictures, in prompt order."""
    videos: tuple[tuple[Image.Image, ...], ...]
    """Frames of each video, upright RGB, in prompt order."""

    @classmethod
    def from_row(cls, row: Row, *, where: str = "row") -> Conversation:
        """Read ``prompt`` with ``image`` or ``images`` and ``videos``, as TRL does.

        Pictures from columns fill the blocks that have none, in order. Where no block of their kind exists,
        blocks are put before the text of the first user message.

        >>> picture = Image.new("L", (4, 4))
        >>> conversation = Conversation.from_row({"prompt": [{"role": "user", "content": "What is it?"}], "image": picture})
        >>> [block["type"] for block in conversation.messages[0]["content"]]
        ['image', 'text']
        """
        images, videos = _columns(row, where)
        messages = [_structured(message, f"{where}, message {i}") for i, message in enumerate(_prompt(row, where))]
        _place(messages, {"image": len(images), "video": len(videos)}, where)
        slots = {kind: [b for m in messages for b in m["content"] if b["type"] == kind] for kind in ("image", "video")}
        _fill(slots["image"], "image", images, where)
        _fill(slots["video"], "video", videos, where)
        for i, block in enumerate(slots["image"]):
            block["image"] = to_rgb(block["image"], where=f"{where}, image {i}")
        for i, block in enumerate(slots["video"]):
            block["video"] = _frames(block["video"], f"{where}, video {i}")
        return cls(
            messages=tuple(messages),
            images=tuple(block["image"] for block in slots["image"]),
            videos=tuple(tuple(block["video"]) for block in slots["video"]),
        )

    def outline(self, pattern: re.Pattern[str], mark: str) -> list[dict[str, Any]]:
        """The messages without pictures, each piece of text broken where `pattern` would find a token in it."""
        return [{**message, "content": _outline(message["content"], pattern, mark)} for message in self.messages]

    def texts(self) -> Iterable[str]:
        """Every text block."""
        return (block["text"] for m in self.messages for block in m["content"] if block["type"] == "text")


def token_pattern(tokens: Iterable[str]) -> re.Pattern[str]:
    """A pattern that matches, without consuming it, wherever any of the tokens starts."""
    return re.compile("|".join(f"(?={re.escape(token)})" for token in sorted(tokens)))


def broken(texts: Sequence[str], pattern: re.Pattern[str], mark: str) -> list[str]:
    """The texts with a mark after the first character of each token, so that what lies between marks is only text.

    Neighbours count as one text, because a template joins them: a token half in each is found too.

    >>> broken(["see <pad> here", " <p", "ad>"], token_pattern(["<pad>"]), "/")
    ['see </pad> here', ' </p', 'ad>']
    """
    cuts = [match.start() + 1 for match in pattern.finditer("".join(texts))]
    marked: list[str] = []
    start = 0
    for text in texts:
        inside = [0, *(cut - start for cut in cuts if start <= cut - 1 and cut <= start + len(text)), len(text)]
        marked.append(mark.join(text[a:b] for a, b in pairwise(inside)))
        start += len(text)
    return marked


def unused_mark(texts: Iterable[str]) -> str:
    """A private-use character that occurs in none of the texts."""
    used = set("".join(texts))
    return next(mark for mark in map(chr, count(PRIVATE_USE)) if mark not in used)


def _prompt(row: Row, where: str) -> Sequence[Mapping[str, Any]]:
    """The messages of a row."""
    prompt = row["prompt"]
    if isinstance(prompt, Sequence) and prompt and all(isinstance(message, Mapping) for message in prompt):
        return prompt
    raise ValueError(
        f"{where}: reading 'prompt': found {type(prompt).__name__} {str(prompt)[:60]!r}. "
        'Give a non-empty list of messages, e.g. [{"role": "user", "content": "..."}].'
    )


def _columns(row: Row, where: str) -> tuple[list[Any], list[Any]]:
    """Pictures and videos that the row holds outside its messages."""
    image, images, videos = row.get("image"), row.get("images"), row.get("videos")
    if image is not None and images is not None:
        raise ValueError(f"{where}: reading pictures: found both 'image' and 'images'. Keep one of the two columns.")
    for name, value in (("images", images), ("videos", videos)):
        if value is not None and not isinstance(value, list | tuple):
            raise ValueError(
                f"{where}: reading {name!r}: found {type(value).__name__}. Give a list with one entry for each."
            )
    return list(images or []) if image is None else [image], list(videos or [])


def _structured(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A message of its own whose content is a list of blocks of its own."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise ValueError(f"{where}: reading its role: found {role!r}. Use one of {', '.join(ROLES)}.")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    elif content is None and message.get("tool_calls"):
        content = []
    if not isinstance(content, list | tuple):
        raise ValueError(
            f"{where}: reading its content: found {type(content).__name__}. Give a string or a list of blocks."
        )
    return {**message, "content": [_block(block, f"{where}, block {i}") for i, block in enumerate(content)]}


def _block(block: Any, where: str) -> Block:
    """A copy of one block; keys with None are what a columnar file adds to make all blocks alike."""
    fields = block if isinstance(block, Mapping) else {"type": type(block).__name__}
    found = {key: value for key, value in fields.items() if value is not None}
    kind = found.get("type")
    if kind not in ("text", "image", "video") or set(found) - {"type", kind}:
        raise ValueError(
            f"{where}: reading a content block: found type {kind!r} with keys {sorted(found)}. "
            'Use {"type": "text", "text": ...}, {"type": "image", "image": ...} or {"type": "video", "video": [...]}; '
            "the picture may also come from the row's column."
        )
    if kind == "text" and not isinstance(found.get("text"), str):
        raise ValueError(f"{where}: reading its text: found {type(found.get('text')).__name__}. Give a string.")
    return found


def _place(messages: list[dict[str, Any]], available: Mapping[str, int], where: str) -> None:
    """Put blocks before the first user text for the kinds of picture that no message has a block for."""
    present = {block["type"] for message in messages for block in message["content"]}
    blocks = [{"type": kind} for kind, num in available.items() if kind not in present for _ in range(num)]
    if not blocks:
        return
    user = next((message for message in messages if message["role"] == "user"), None)
    if user is None:
        raise ValueError(f"{where}: placing {len(blocks)} pictures: found no user message. Add one, or image blocks.")
    user["content"][:0] = blocks


def _fill(slots: list[Block], kind: str, sources: list[Any], where: str) -> None:
    """Give each block without a picture the next one of the row's column."""
    empty = [slot for slot in slots if kind not in slot]
    if len(empty) != len(sources):
        raise ValueError(
            f"{where}: matching {kind}s: found {len(empty)} {kind} blocks without a {kind} in 'prompt' and "
            f"{len(sources)} {kind}s in the row's columns. Make the two numbers equal."
        )
    for slot, source in zip(empty, sources, strict=True):
        slot[kind] = source


def _frames(frames: Any, where: str) -> list[Image.Image]:
    """The frames of one video as upright RGB pictures of one size."""
    if not isinstance(frames, list | tuple) or not frames:
        found = "0 frames" if isinstance(frames, list | tuple) else type(frames).__name__
        raise ValueError(
            f"{where}: reading its frames: found {found}. Give a non-empty list of pictures, already sampled."
        )
    pictures = [to_rgb(frame, where=f"{where}, frame {i}") for i, frame in enumerate(frames)]
    sizes = sorted({picture.size for picture in pictures})
    if len(sizes) > 1:
        raise ValueError(f"{where}: reading its frames: found sizes {sizes}. All frames of a video must have one size.")
    return pictures


def _outline(content: Sequence[Block], pattern: re.Pattern[str], mark: str) -> list[Block]:
    """Blocks for the chat template: pictures by type only, texts broken where a token would be found."""
    blocks: list[Block] = []
    for kind, run in groupby(content, key=lambda block: block["type"]):
        if kind != "text":
            blocks.extend({"type": kind} for _ in run)
            continue
        marked = broken([block["text"] for block in run], pattern, mark)
        blocks.extend({"type": "text", "text": text} for text in marked)
    return blocks
