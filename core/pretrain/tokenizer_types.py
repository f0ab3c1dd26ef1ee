"""Tokenizer types, and their names in Megatron-LM and GPT-NeoX."""

from __future__ import annotations

from typing import Literal

TokenizerType = Literal["gpt2", "huggingface", "bytes"]

TYPES: tuple[TokenizerType, ...] = ("gpt2", "huggingface", "bytes")

_SAME: dict[str, TokenizerType] = {
    "gpt2bpetokenizer": "gpt2",
    "hftokenizer": "huggingface",
    "huggingfacetokenizer": "huggingface",
}
"""Names of `--tokenizer-type` in Megatron-LM and GPT-NeoX, lowercase: the same tokens from the same files."""

_JSON = "Convert its model to Hugging Face's tokenizer.json, and give that with type huggingface."

_OTHER = {
    "bertwordpiecelowercase": "It is BERT's, which does not restore the text; use gpt2, huggingface or bytes.",
    "bertwordpiececase": "It is BERT's, which does not restore the text; use gpt2, huggingface or bytes.",
    "sentencepiecetokenizer": _JSON,
    "gptsentencepiecetokenizer": _JSON,
    "spmtokenizer": _JSON,
    "llama2tokenizer": _JSON,
    "tiktokentokenizer": _JSON,
    "charleveltokenizer": "bytes is similar, but has other ids: encode the text again with it.",
    "nulltokenizer": "It reads no text; bytes needs no files either.",
}
"""Types that are not supported, and the replacement for each."""


def tokenizer_type(name: str) -> TokenizerType:
    """Return the type for a name of ours, Megatron-LM's or GPT-NeoX's, in any case; ValueError says what to use."""
    lower = name.lower()
    for kind in TYPES:
        if kind == lower:
            return kind
    if lower in _SAME:
        return _SAME[lower]
    msg = f"{name[:60]!r} is not gpt2 (GPT2BPETokenizer), huggingface (HFTokenizer) or bytes. {_OTHER.get(lower, '')}"
    raise ValueError(msg.rstrip())
