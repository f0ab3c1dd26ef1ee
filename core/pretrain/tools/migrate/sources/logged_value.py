"""Values as a program's log shows them."""

from __future__ import annotations

import ast
import re
from typing import Any

_DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.half": "fp16", "torch.bfloat16": "bf16"}
"""What flags call a dtype; Megatron-LM's `validate_args` puts torch's in the place of their text."""

_ENUMS = re.compile(r"(?:AttnBackend|CudaGraphScope|CudaGraphModule|ModelType)\.(\w+)")
"""Enumerations that Megatron-LM's parser makes of a text. Others are not guessed: "Vocab.json" is a file."""

_MEMBER = re.compile(r"<\w+\.(\w+): [^<>]*>")
_PLAIN = (bool, int, float, type(None), list, dict)


def value_of(text: str) -> Any:
    """Return the value whose text a log shows.

    A text stays a text unless the value that it reads as is shown in exactly the same way. So "949,50,1" is not a
    tuple, "10_000" and "1.0e-5" are not numbers, and str() gives the text of every number back.

    Args:
        text: as the log has it, after its name.
    """
    if text in _DTYPES:
        return _DTYPES[text]
    if member := _ENUMS.fullmatch(text):
        return member[1]
    plain = _MEMBER.sub(lambda found: repr(found[1]), text)
    if plain != text and not plain.startswith("["):
        return ast.literal_eval(plain) if plain.startswith("'") else text
    return _literal(plain)


def _literal(text: str) -> Any:
    if text in {"inf", "-inf", "nan"}:
        return float(text)
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, _PLAIN) and repr(value) == text else text
