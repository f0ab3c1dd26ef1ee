"""GPT-NeoX's settings of the tokenizer and of its token files (NeoXArgsTokenizer, NeoXArgsTraining)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.neox.objects import refused
from pretrain.tools.migrate.setting import Derived, in_place, taken, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_TYPES = {"gpt2bpetokenizer": "gpt2", "hftokenizer": "huggingface"}
_PATHS, _WEIGHTS = "train_data_paths", "train_data_weights"


def tokenizer_type(settings: Settings) -> Derived:
    """Return the kind of tokenizer."""
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    kind = _TYPES.get(str(given).lower())
    if kind is not None:
        return Derived(kind, ("tokenizer_type",))
    change = f"{given} is not offered; a tokenizer.json of the same vocabulary has to stand in its place"
    return in_place("huggingface", "tokenizer_type", change)


def vocab_file(settings: Settings) -> Derived | None:
    """Return GPT-2's vocabulary."""
    return taken(settings, "vocab_file") if _is_gpt2(settings) else None


def merge_file(settings: Settings) -> Derived | None:
    """Return GPT-2's merges."""
    if settings.value("merge_file") is None or _is_gpt2(settings):
        return taken(settings, "merge_file")
    return unused("merge_file", f"{settings.value('tokenizer_type')} does not read it")


def tokenizer_file(settings: Settings) -> Derived | None:
    """Return the tokenizer.json, which GPT-NeoX calls its vocab_file."""
    if _is_gpt2(settings):
        return None
    given = settings.value("vocab_file")
    if given is None:
        return Derived("data/tokenizer.json", (), "to be put there: the source names no file")
    if str(given).endswith(".json"):
        return Derived(given, ("vocab_file",))
    beside = PurePosixPath(str(given)).parent / "tokenizer.json"
    return Derived(str(beside), ("vocab_file",), f"{given} has to be there as a tokenizer.json")


def _is_gpt2(settings: Settings) -> bool:
    return bool(tokenizer_type(settings).value == "gpt2")


def has_own_evaluation_text(settings: Settings) -> bool:
    """Return whether training, validation and test have token files of their own."""
    return bool(settings.value(_PATHS))


def data_path(settings: Settings) -> Derived | None:
    """Return the token file if there is one."""
    parts = _parts(settings)
    if parts is None:
        return taken(settings, "data_path")
    return Derived(parts[0]["path"], (_PATHS,)) if len(parts) == 1 else None


def blend(settings: Settings) -> Derived | None:
    """Return several token files with their weights, which are equal by default."""
    parts = _parts(settings)
    return None if parts is None or len(parts) == 1 else Derived(parts, (_PATHS, _WEIGHTS))


def split(settings: Settings) -> Derived | None:
    """Return the shares of training, validation and test; all of a file that is for training alone."""
    if has_own_evaluation_text(settings):
        idle = (("split", "train_data_paths, valid_data_paths and test_data_paths are not split"),)
        return Derived("1,0,0", (_PATHS,), "these files are for training alone", idle=idle)
    given = settings.value("split")
    if given is None:
        return None
    shares = [share.strip() for share in str(given).replace("/", ",").split(",") if share.strip()]
    return Derived(",".join([*shares, *["0"] * (3 - len(shares))]), ("split",))


def _parts(settings: Settings) -> list[dict[str, Any]] | None:
    paths: Any = settings.value(_PATHS)
    if not paths:
        return None
    paths = paths if isinstance(paths, list) else [paths]
    weights: Any = settings.value(_WEIGHTS, [1.0] * len(paths))
    if not isinstance(weights, list) or len(weights) != len(paths):
        why = f"{len(paths)} files need as many weights"
        raise refused(settings, _WEIGHTS, why, f"Give {_WEIGHTS} a number for each of {_PATHS}")
    parts = [{"weight": weight, "path": path} for weight, path in zip(weights, paths, strict=True)]
    return [part for part in parts if part["weight"] != 0] or parts


FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": vocab_file,
    "tokenizer.merge_file": merge_file,
    "tokenizer.file": tokenizer_file,
    "data.path": data_path,
    "data.blend": blend,
    "data.split": split,
}
