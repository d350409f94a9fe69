import base64
import io
import re
from dataclasses import replace

import pytest
from PIL import Image
from views import fakes

from rollplex.prompts import PromptBatch
from rollplex.views.rollouts import prompt_text, rollouts

EVIL = '</td><script>alert("x")</script>'


def test_nothing_that_was_written_becomes_markup() -> None:
    step = fakes.step(text=EVIL)
    step = replace(step, prompts=PromptBatch(prompts=tuple(fakes.prompt(EVIL, answer=EVIL) for _ in range(2))))
    shown = rollouts(step).text
    assert "<script>" not in shown
    assert shown.count("&lt;script&gt;") == 2 + 2


def test_every_picture_of_the_prompt_is_shown_as_it_is() -> None:
    prompts = PromptBatch(prompts=(fakes.prompt(num_images=3), fakes.prompt()))
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', rollouts(replace(fakes.step(), prompts=prompts)).text)
    sizes = [Image.open(io.BytesIO(base64.b64decode(text))).size for text in found]
    assert sizes == [(56, 56)] * 3


def test_a_video_is_a_strip_of_its_frames() -> None:
    frames = [Image.new("RGB", (56, 56)) for _ in range(20)]
    clip = replace(fakes.prompt(), messages=({"role": "user", "content": [{"type": "video", "video": frames}]},))
    shown = rollouts(replace(fakes.step(), prompts=PromptBatch(prompts=(clip, clip)))).text
    assert shown.count("<img") == 1


def test_rewards_and_advantages_stand_beside_their_response() -> None:
    cells = re.findall(r"<td>(.*?)</td>", rollouts(fakes.step(scores=[[1.0, 0.25]])).text)
    assert cells[:4] == ["1", '<span class="up">+0.5</span>', "1", "It is 4."]
    assert cells[4:] == ["0.25", '<span class="down">−0.25</span>', "2 (cut)", "It is 4."]


def test_what_the_step_does_not_have_yet_is_left_out() -> None:
    shown = rollouts(replace(fakes.step(), rewards=None, suffix=None)).text
    assert "<th>reward</th>" not in shown
    assert "<th>response</th>" in shown


def test_a_long_group_says_how_many_are_left() -> None:
    assert "and 4 more" in rollouts(fakes.step(scores=[[0.0] * 20])).text


def test_a_prompt_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"prompt 9.*\[0, 1\]"):
        rollouts(fakes.step(), 9)
    with pytest.raises(ValueError, match="none yet"):
        rollouts(replace(fakes.step(), rollout=None))


def test_a_plain_string_prompt_is_its_own_text() -> None:
    assert prompt_text(replace(fakes.prompt(), messages=(), row={"prompt": "2 + 2"})) == "2 + 2"
