"""Files of a tokenizer beside a model of Hugging Face, by the names that transformers looks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pretrain.data.tokenizers.files import END_TOKENS
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_CONFIG, _WHOLE, _VOCAB, _MERGES = "tokenizer_config.json", "tokenizer.json", "vocab.json", "merges.txt"
_MAP, _ADDED = "special_tokens_map.json", "added_tokens.json"
FILES = (_WHOLE, _CONFIG, _MAP, _VOCAB, _MERGES, _ADDED, "tokenizer.model", "chat_template.jinja")
_LARGEST = 100_000_000


def tokenizer_files(paths: Iterable[Path]) -> dict[str, bytes]:
    """Return the content of a tokenizer's files under transformers' names, whatever their own names are.

    Without a tokenizer_config.json AutoTokenizer would take the architecture's tokenizer, and change what the
    tokenizer.json says; so one is added.

    Raises:
        CheckpointError: a file cannot be read, or is larger than 100 MB.
    """
    files = {}
    for path in paths:
        content = content_of(path)
        files[_name(path, content)] = content
    if _CONFIG not in files and (_WHOLE in files or {_VOCAB, _MERGES} <= files.keys()):
        kind = "PreTrainedTokenizerFast" if _WHOLE in files else "GPT2Tokenizer"
        end = _end_token(_ids(files))
        config = {"tokenizer_class": kind} | ({} if end is None else {"eos_token": end})
        files[_CONFIG] = json.dumps(config, indent=2).encode()
    return files


def content_of(path: Path) -> bytes:
    """Return the content of a file that is copied into the target.

    Raises:
        CheckpointError: it cannot be read, or is larger than 100 MB.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}.\nPut it back."
        raise CheckpointError(msg) from error
    if len(content) > _LARGEST:
        msg = f"{path} is larger than {_LARGEST // 1_000_000} MB, and no file of a tokenizer is.\nTake it away."
        raise CheckpointError(msg)
    return content


def special_ids(files: Mapping[str, bytes]) -> dict[str, int | None]:
    """Return `bos_token_id` and `eos_token_id` as a tokenizer's files tell them; None is not known."""
    told = _object(files.get(_MAP)) | _object(files.get(_CONFIG))
    ids = _ids(files)
    found = {}
    for name in ("bos", "eos"):
        token = told.get(f"{name}_token")
        token = token.get("content") if isinstance(token, dict) else token
        found[f"{name}_token_id"] = ids.get(token) if isinstance(token, str) else None
    return found


def _name(path: Path, content: bytes) -> str:
    """Return transformers' name of a file, which has any name where a recipe names it."""
    if path.name in FILES or path.suffix not in {".json", ".txt"}:
        return path.name
    if path.suffix == ".txt":
        return _MERGES
    return _WHOLE if isinstance(_object(content).get("model"), dict) else _VOCAB


def _end_token(ids: Mapping[str, int]) -> str | None:
    return next((token for token in END_TOKENS if token in ids), None)


def _ids(files: Mapping[str, bytes]) -> dict[str, int]:
    """Return the id of every token of a vocabulary that is a mapping, and of the added ones."""
    whole = _object(files.get(_WHOLE))
    model, added = whole.get("model"), whole.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, Any] = dict(vocab) if isinstance(vocab, dict) else {}
    ids |= _object(files.get(_VOCAB)) | _object(files.get(_ADDED))
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    return {token: number for token, number in ids.items() if type(number) is int}


def _object(content: bytes | None) -> dict[str, Any]:
    """Return an object; {} where there is none: a tokenizer's file is copied whatever is in it."""
    try:
        value = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
