"""The parts of the shipped model that are not weights: tokenizer, picture processors and shape.

Knows transformers and the words of the tasks. Does not know training.
"""

from __future__ import annotations

from collections.abc import Iterator

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2_5_VLProcessor,
    Qwen2VLImageProcessor,
    Qwen2VLVideoProcessor,
)

from rollplex.tasks.clips import Clips
from rollplex.tasks.digits import Digits

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
END, START, STOP, VISION_START, VISION_END, _, IMAGE, VIDEO = range(len(SPECIAL))
VOCAB_SIZE = 512
LARGEST_NUMBER = 81
"""Numbers that are one token each: sums of up to nine digits."""
TILE = 28 * 28
"""Pixels of one visual token."""

# Qwen2.5-VL's conversation form without its default system prompt. Blocks are told apart by their type alone, because
# a data set stored in Arrow gives every block every key.
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string -%}
{{ message['content'] }}
{%- else -%}
{%- for block in message['content'] -%}
{%- if block['type'] == 'image' -%}
<|vision_start|><|image_pad|><|vision_end|>
{%- elif block['type'] == 'video' -%}
<|vision_start|><|video_pad|><|vision_end|>
{%- elif block['type'] == 'text' -%}
{{ block['text'] }}
{%- else -%}
{{ raise_exception('Unknown content block: ' + block['type']) }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}
"""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer, lossless on any text, in which each word and number of the tasks is one token."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?[^\s]+|\s"), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=[token for token in SPECIAL if token not in ("<|im_end|>", "<|endoftext|>")],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def _corpus() -> Iterator[str]:
    """Text in which every word that is to be one token is frequent."""
    numbers = "".join(f" {number}" for number in range(LARGEST_NUMBER + 1))
    for _ in range(1000):
        yield numbers
        yield from ("system", "user", "assistant")
    for task in (Digits(), Clips()):
        for row in task.rows(500):
            yield row["prompt"][0]["content"][-1]["text"]
            yield task.solution(row)


def make_config(vocab_size: int) -> Qwen2_5_VLConfig:
    """The shape of the model: Qwen2.5-VL in every respect but size."""
    text = dict(
        vocab_size=vocab_size,
        hidden_size=192,
        intermediate_size=448,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 6, 6]},
        bos_token_id=None,
        eos_token_id=STOP,
        pad_token_id=END,
    )
    vision = dict(
        depth=3,
        hidden_size=128,
        intermediate_size=256,
        num_heads=4,
        out_hidden_size=192,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
        tokens_per_second=2,
        window_size=112,
        fullatt_block_indexes=[2],
    )
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
        eos_token_id=STOP,
        pad_token_id=END,
    )


def make_processor() -> Qwen2_5_VLProcessor:
    """Tokenizer and picture processors; the size limits leave pictures of 1 to 4096 visual tokens as they are."""
    limits = {"shortest_edge": TILE, "longest_edge": 4096 * TILE}
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(size=limits),
        tokenizer=make_tokenizer(),
        video_processor=Qwen2VLVideoProcessor(size=limits, cap_pixels_per_frame=False),
        chat_template=CHAT_TEMPLATE,
    )
