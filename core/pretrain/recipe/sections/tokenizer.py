"""Section `tokenizer`: how text becomes tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from pretrain.recipe.section import Int, LocalPath, Section
from pretrain.tokenizer_types import TokenizerType, tokenizer_type


def _type(given: object) -> object:
    return tokenizer_type(given) if isinstance(given, str) else given


class TokenizerSection(Section):
    """Tokenizer of the text. Paths are relative to the working directory."""

    type: Annotated[TokenizerType, BeforeValidator(_type)] = Field(
        description="gpt2 (byte-level BPE of vocab_file and merge_file), huggingface (one json) or bytes (no files); "
        "GPT2BPETokenizer and HFTokenizer mean the first two."
    )
    vocab_file: LocalPath | None = Field(default=None, description="GPT-2's vocab.json, for type gpt2.")
    merge_file: LocalPath | None = Field(default=None, description="GPT-2's merges.txt, for type gpt2.")
    file: LocalPath | None = Field(default=None, description="A tokenizer.json of Hugging Face, for type huggingface.")
    vocab_size: Int | None = Field(
        default=None,
        gt=256,
        description="Number of tokens of the tokenizer that is trained on data.corpus if `file` is absent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _file_of_gpt_neox(cls, given: Any) -> Any:
        """Read vocab_file as file: GPT-NeoX's key of a tokenizer.json."""
        if not isinstance(given, dict) or given.get("file") is not None or given.get("vocab_file") is None:
            return given
        try:
            named = tokenizer_type(str(given.get("type")))
        except ValueError:  # a wrong type has its own error
            return given
        if named != "huggingface":
            return given
        rest = {key: value for key, value in given.items() if key != "vocab_file"}
        return {**rest, "file": given["vocab_file"]}
