"""One group of responses as HTML: the prompt with its pictures, then each response with its reward and advantage.

This file knows how a group looks. Everything that a person or a model wrote is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from rollplex.views.html import Html
from rollplex.views.pictures import data_uri, pictures
from rollplex.views.units import digits

if TYPE_CHECKING:
    from rollplex.prompts import Prompt
    from rollplex.step import Step

STYLE = """<style>
.rollplex-group{font:13px/1.45 system-ui,sans-serif;max-width:60rem}
.rollplex-group .pictures{display:flex;flex-wrap:wrap;gap:6px;margin:.3em 0 .5em}
.rollplex-group .pictures img{min-height:56px;max-height:160px;max-width:100%;object-fit:contain;
 image-rendering:pixelated;border:1px solid rgba(128,134,145,.35);border-radius:4px;background:#fff}
.rollplex-group .question{white-space:pre-wrap;margin:.2em 0 .6em;font-weight:600}
.rollplex-group table{border-collapse:collapse;width:100%;font:inherit}
.rollplex-group th{white-space:nowrap;font-weight:500;opacity:.7;text-align:right;padding:2px 10px 2px 0}
.rollplex-group th:last-child{text-align:left}
.rollplex-group td{padding:3px 10px 3px 0;border-top:1px solid rgba(128,134,145,.25);vertical-align:top;
 white-space:nowrap;text-align:right;font-variant-numeric:tabular-nums}
.rollplex-group td:last-child{text-align:left;width:100%;white-space:pre-wrap;overflow-wrap:anywhere;
 font-family:ui-monospace,monospace;font-size:12px}
.rollplex-group .up{color:#2a9d78}.rollplex-group .down{color:#d1495b}.rollplex-group .note{opacity:.7}
</style>"""


def rollouts(step: Step, prompt: int = 0, *, max_responses: int = 16) -> Html:
    """The group of one prompt of a step; columns that the step does not have yet are left out.

    The answer that the task expects is shown where the row has a column ``answer`` or ``solution``.
    """
    if step.rollout is None:
        raise ValueError(f"showing the rollouts of step {step.index}: it has none yet. Run the decode phase first.")
    group = next((g for g in step.rollout.groups if g.prompt == prompt), None)
    if group is None:
        known = [g.prompt for g in step.rollout.groups]
        raise ValueError(
            f"showing the rollouts of prompt {prompt} of step {step.index}: there are prompts {known}. Name one."
        )
    scores = (
        next((g.values.tolist() for g in step.rewards.groups if g.prompt == prompt), None) if step.rewards else None
    )
    # SuffixStats keeps one tensor a prompt, in prompt order.
    order = [g.prompt for g in step.rollout.groups].index(prompt)
    advantages = step.suffix.advantages[order].tolist() if step.suffix else None
    lengths, finished = group.lengths.tolist(), group.finished.tolist()
    heads = [*(["reward"] if scores else []), *(["advantage"] if advantages else []), "tokens", "response"]
    lines = []
    for i, text in enumerate(group.texts[:max_responses]):
        cells = [digits(scores[i])] if scores else []
        cells += [_signed(advantages[i])] if advantages else []
        cells += [f"{lengths[i]}" + ("" if finished[i] else " (cut)"), escape(text)]
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    more = group.size - len(lines)
    return Html(
        f'{STYLE}<div class="rollplex-group"><div class="note">step {step.index}, prompt {prompt}, '
        f"group of {group.size}</div>{_prompt(step.prompts[prompt])}<table><tr>"
        + "".join(f"<th>{head}</th>" for head in heads)
        + "</tr>"
        + "".join(lines)
        + "</table>"
        + (f'<div class="note">and {more} more</div>' if more > 0 else "")
        + "</div>"
    )


def prompt_text(prompt: Prompt) -> str:
    """The words of a prompt's messages, a picture as ``[image]`` or ``[video]``, a line for each message."""
    if not prompt.messages:  # a row whose prompt is a plain string
        return str(prompt.row["prompt"]).strip()
    return "\n".join(_message_text(message) for message in prompt.messages).strip()


def _message_text(message: Mapping[str, Any]) -> str:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    words = [str(block["text"]) if block["type"] == "text" else f"[{block['type']}]" for block in blocks]
    said = " ".join(word for word in words if word)
    return said if message["role"] == "user" else f"{message['role']}: {said}"


def _prompt(prompt: Prompt) -> str:
    shown = "".join(f'<img alt="" src="{data_uri(picture)}">' for picture in pictures(prompt))
    parts = [f'<div class="pictures">{shown}</div>'] if shown else []
    parts.append(f'<div class="question">{escape(prompt_text(prompt))}</div>')
    for column in ("answer", "solution"):
        if column in prompt.row:
            parts.append(f'<div class="note">expected: {escape(str(prompt.row[column]))}</div>')
            break
    return "".join(parts)


def _signed(value: float) -> str:
    if not math.isfinite(value) or value == 0:
        return digits(value)
    return f'<span class="{"up" if value > 0 else "down"}">{"+" if value > 0 else "−"}{digits(abs(value))}</span>'
