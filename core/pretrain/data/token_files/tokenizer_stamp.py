"""Stamp beside token files: the fingerprint of their tokenizer and, for a shard, the digest of its corpus."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.atomic_files import replacing
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.data.tokenizers import Tokenizer

_CORPUS = "corpus"  # key of the corpus digest; absent for builds without shards, and for shards of older versions


def stamp_path(prefix: str | Path) -> Path:
    """Return the path of the file for the token files of `prefix`."""
    return Path(f"{prefix}.tokenizer.json")


def write_stamp(path: Path, tokenizer: Tokenizer, corpus: str | None = None) -> None:
    """Write the fingerprint of `tokenizer`, and for a shard its `corpus_digest`."""
    content = {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "eod": tokenizer.eod}
    with replacing(path) as stream:
        stream.write(_as_bytes(content if corpus is None else content | {_CORPUS: corpus}))


def check_stamp(prefix: str | Path, tokenizer: Tokenizer) -> None:
    """Raise DataError if the data was made with another tokenizer; data without a stamp (Megatron's) passes."""
    made_with = _read(prefix)
    if made_with is not None and made_with["fingerprint"] != tokenizer.fingerprint:
        theirs, ours = made_with.get("vocab_size"), tokenizer.vocab_size
        which = f"another tokenizer ({theirs} tokens) than the given one ({ours} tokens)."
        if theirs == ours:
            which = "another tokenizer than the given one: was its file replaced?"
        msg = (
            f"{prefix} was made with {which}\n"
            "Restore that tokenizer or name it; for a new run the data may be built again. "
            f"If both give the same ids, remove {stamp_path(prefix)}."
        )
        raise DataError(msg)


def common_stamp(prefixes: Sequence[Path]) -> bytes | None:
    """Return the stamp for the merged files of all `prefixes`, None if one has none; DataError: the stamps differ."""
    notes = {prefix: note for prefix in prefixes if (note := _read(prefix)) is not None}
    corpora = {prefix: note.pop(_CORPUS) for prefix, note in notes.items() if _CORPUS in note}
    if different := _different(notes):
        msg = f"{different} were made with different tokenizers, so an id is not the same text in both."
        raise DataError(msg)
    if different := _different(corpora):
        msg = (
            f"{different} are shards of different builds: of other files, or with another --json-key, --append-eod, "
            "--clean or --min-length.\nIf files were added to the inputs between two tasks, build all shards again."
        )
        raise DataError(msg)
    return _as_bytes(notes[prefixes[0]]) if all(prefix in notes for prefix in prefixes) else None


def _different(values: dict[Path, Any]) -> str | None:
    pairs = pairwise(values.items())
    return next((f"{first} and {other}" for (first, one), (other, another) in pairs if one != another), None)


def _read(prefix: str | Path) -> dict[str, Any] | None:
    path = stamp_path(prefix)
    try:
        note = json.loads(path.read_bytes())
        return {**note, "fingerprint": note["fingerprint"]}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        msg = f"{path} is damaged: {exc}.\nIf the data was made with the recipe's tokenizer, remove this file."
        raise DataError(msg) from exc


def _as_bytes(note: dict[str, Any]) -> bytes:
    return json.dumps(note, indent=2).encode() + b"\n"
