"""Section `tokenizer`: how text becomes tokens."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pretrain.recipe.section import Int, Section, Str


class TokenizerSection(Section):
    """How text becomes tokens. Paths are relative to the working directory."""

    type: Literal["gpt2", "huggingface", "bytes"] = Field(
        description="gpt2 (byte-level BPE of vocab_file and merge_file), huggingface (one json) or bytes (no files)."
    )
    vocab_file: Str | None = Field(default=None, min_length=1, description="GPT-2's vocab.json, for type gpt2.")
    merge_file: Str | None = Field(default=None, min_length=1, description="GPT-2's merges.txt, for type gpt2.")
    file: Str | None = Field(
        default=None, min_length=1, description="A tokenizer.json of Hugging Face, for type huggingface."
    )
    vocab_size: Int | None = Field(
        default=None,
        gt=256,
        description="Number of tokens of the tokenizer that is trained on data.corpus if `file` is absent.",
    )
