"""Byte-level tokenizers small enough to be made on the spot, for text encoders with random weights.

Every byte is one token and nothing is merged, so any prompt can be encoded. Not a model of how the real tokenizers
split words.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CLIP_SPECIALS = ("<|startoftext|>", "<|endoftext|>")
QWEN_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *QWEN_VISION)
CLIP_LENGTH = 77


def byte_alphabet() -> list[str]:
    """The 256 printable characters that GPT-2 style tokenizers use for the 256 byte values, in byte order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def write_clip(folder: Path) -> Any:
    """Write a CLIP tokenizer of 514 tokens to ``folder`` and load it from there."""
    from transformers import CLIPTokenizer

    alphabet = byte_alphabet()
    _write(folder, [*alphabet, *(char + "</w>" for char in alphabet), *CLIP_SPECIALS], CLIP_LENGTH)
    return CLIPTokenizer.from_pretrained(folder)


def write_qwen(folder: Path) -> Any:
    """Write a Qwen2 tokenizer of 263 tokens to ``folder`` and load it from there."""
    from transformers import Qwen2Tokenizer

    _write(folder, [*byte_alphabet(), *QWEN_SPECIALS], 1024)
    tokenizer = Qwen2Tokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(QWEN_SPECIALS[1:])})
    return tokenizer


def _write(folder: Path, tokens: list[str], length: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}), encoding="utf-8")
