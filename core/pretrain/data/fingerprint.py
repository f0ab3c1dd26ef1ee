"""The small file beside token files that says with which tokenizer they were made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.data.replacing import replacing
from pretrain.errors import DataError

if TYPE_CHECKING:
    from pretrain.data.tokenizers import Tokenizer


def fingerprint_path(prefix: str | Path) -> Path:
    """Return the path of the file for the token files of `prefix`."""
    return Path(f"{prefix}.tokenizer.json")


def write_fingerprint(path: Path, tokenizer: Tokenizer) -> None:
    """Write what identifies `tokenizer`."""
    content = {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eod": tokenizer.eod}
    with replacing(path) as stream:
        stream.write(json.dumps(content, indent=2).encode() + b"\n")


def check_fingerprint(prefix: str | Path, tokenizer: Tokenizer) -> None:
    """Raise DataError if the data was made with another tokenizer; data that does not say (Megatron's) passes."""
    path = fingerprint_path(prefix)
    try:
        made_with = json.loads(path.read_bytes())
        same = made_with["fingerprint"] == tokenizer.fingerprint
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError) as exc:
        msg = f"{path} is damaged: {exc}.\nIf the data was made with the recipe's tokenizer, remove this file."
        raise DataError(msg) from exc
    if not same:
        msg = (
            f"{prefix} was made with another tokenizer ({made_with.get('vocab_size')} tokens) than the recipe's "
            f"({tokenizer.vocab_size} tokens).\nName that tokenizer in section tokenizer, or build the data again. "
            f"If both give the same ids, remove {path}."
        )
        raise DataError(msg)
