"""The tokenizer, the token files and the samples that are cut out of them."""

# Sources: megatron/tokenizer/tokenizer.py, megatron/data/gpt_dataset.py and megatron/core/datasets of Megatron-LM;
# parse_data_paths in megatron/arguments.py of bigscience's Megatron-DeepSpeed.

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.megatron.model import position_embedding_type
from pretrain.tools.migrate.setting import Derived, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_HUB_CLASSES = ("HFTokenizer", "HuggingFaceTokenizer", "PretrainedFromHF")
_TYPES = {"GPT2BPETokenizer": "gpt2", **dict.fromkeys(_HUB_CLASSES, "huggingface")}


def tokenizer_type(settings: Settings) -> Derived:
    """Return the kind of tokenizer."""
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    if given in _TYPES:
        return Derived(_TYPES[given], ("tokenizer_type",))
    change = f"{given} is not offered; a tokenizer.json of the same vocabulary has to stand in its place"
    return Derived("huggingface", ("tokenizer_type",), lost=(("tokenizer_type", change),))


def tokenizer_file(settings: Settings) -> Derived | None:
    """Return the tokenizer.json, which a model's name or folder stands for."""
    if tokenizer_type(settings).value == "gpt2":
        return None
    name = _file_name(settings)
    if not name:
        return Derived("data/tokenizer.json", ("tokenizer_type",), "to be put there: the source names no file")
    given = str(settings.value(name))
    if given.endswith(".json"):
        return Derived(given, (name,))
    folder = PurePosixPath(given).parent if PurePosixPath(given).suffix == ".model" else PurePosixPath(given)
    return Derived(str(folder / "tokenizer.json"), (name,), f"{given} has to be there as a tokenizer.json")


def _of_gpt2(settings: Settings, name: str) -> Derived | None:
    if tokenizer_type(settings).value == "gpt2":
        given = settings.value(name)
        return None if given is None else Derived(given, (name,))
    why = f"the tokenizer {settings.value('tokenizer_type')} does not read it"
    return unused(name, why) if _file_name(settings) != name else None


def _file_name(settings: Settings) -> str:
    return settings.first("tokenizer_model", "tokenizer_name_or_path", "vocab_file")


def data_path(settings: Settings) -> Derived | None:
    """Return the token file if there is one."""
    name, given = _paths(settings)
    return Derived(given[0], (name,)) if len(given) == 1 else None


def blend(settings: Settings) -> Derived | None:
    """Return several token files with their weights."""
    name, given = _paths(settings)
    if len(given) < 2:
        return None
    if not (is_weighted := len(given) % 2 == 0 and all(_is_number(weight) for weight in given[::2])):
        given = [part for path in given for part in ("1", path)]
    change = "token files without weights are mixed by their sizes there; here each has weight 1: write others"
    parts = [{"weight": float(weight), "path": path} for weight, path in zip(given[::2], given[1::2], strict=True)]
    return Derived(parts, (name,), lost=() if is_weighted else ((name, change),))


def split(settings: Settings) -> Derived | None:
    """Return the shares of training, validation and test; the source may leave out the last ones, and write 9/1/0."""
    if trains_on_all(settings):
        idle = (("split", "it cuts the files of --data-path alone"),)
        return Derived("100,0,0", ("train_data_path",), "its files are for training alone", idle=idle)
    given = settings.value("split")
    if given is None:
        return None
    parts = re.findall(r"[.0-9]+", str(given))  # also in quotes, as parse_and_normalize_split reads it
    return Derived(",".join(parts + ["0"] * (3 - len(parts))), ("split",))


def trains_on_all(settings: Settings) -> bool:
    """Say whether token files are named for training alone (blend_per_split of BlendedMegatronDatasetConfig)."""
    return not settings.value("data_path") and bool(settings.value("train_data_path"))


def reset_position_ids(settings: Settings) -> Derived | None:
    """Return whether positions start again after a document, of which rope takes no notice there."""
    name = "reset_position_ids"
    if settings.value(name) and position_embedding_type(settings).value == "rope":
        return unused(name, "rope counts from the beginning of the sequence")
    return Derived(bool(settings.value(name)), (name,))


def reset_attention_mask(settings: Settings) -> Derived | None:
    """Return whether a token sees only its own document."""
    names = ("reset_attention_mask", "dataloader_inter_document_masking")
    stated = tuple(name for name in names if settings.value(name))
    return Derived(bool(stated), stated or names)


def _paths(settings: Settings) -> tuple[str, list[str]]:
    name = settings.first_on("data_path", "train_data_path") or "data_path"
    given: Any = settings.value(name, [])
    folder = settings.value("aml_data_download_path")
    parts = [str(part) for part in (given if isinstance(given, list) else str(given).split())]
    return name, [part if folder is None or _is_number(part) else f"{folder}/{part}" for part in parts]


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": tokenizer_type,
    "tokenizer.vocab_file": partial(_of_gpt2, name="vocab_file"),
    "tokenizer.merge_file": partial(_of_gpt2, name="merge_file"),
    "tokenizer.file": tokenizer_file,
    "data.path": data_path,
    "data.blend": blend,
    "data.split": split,
    "data.reset_position_ids": reset_position_ids,
    "data.reset_attention_mask": reset_attention_mask,
}
