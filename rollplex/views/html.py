"""A piece of HTML that a notebook shows and a page can hold. It knows nothing of what is written in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Html:
    """HTML text that displays as itself.

    >>> Html("<b>hello</b>")
    Html(12 characters)
    """

    text: str
    """The HTML; whoever made it has escaped what came from outside."""

    def _repr_html_(self) -> str:
        return self.text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Html({len(self.text)} characters)"
