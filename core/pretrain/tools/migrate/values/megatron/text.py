"""Keys of the sections `tokenizer` and `data`.

build_tokenizer (megatron/tokenizer/tokenizer.py), get_train_valid_test_split_ (megatron/data/dataset_utils.py) and
get_blend_from_list (megatron/core/datasets/utils.py). pretrain_gpt.py makes GPT2BPETokenizer the default.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.values.megatron.shape import position_embedding_type
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_FROM_HUB = {"HuggingFaceTokenizer", "PretrainedFromHF", "HFTokenizer"}
_NAMED = ("tokenizer_model", "tokenizer_name_or_path", "vocab_file")


def tokenizer_type(settings: Settings) -> Worked:
    """Return the kind of tokenizer."""
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    if given == "GPT2BPETokenizer":
        return Worked("gpt2", ("tokenizer_type",))
    if given in _FROM_HUB:
        return Worked("huggingface", ("tokenizer_type",))
    change = f"{given} is not offered; a tokenizer.json of the same vocabulary has to stand in its place"
    return Worked("huggingface", ("tokenizer_type",), lost=(("tokenizer_type", change),))


def vocab_file(settings: Settings) -> Worked | None:
    """Return GPT-2's vocabulary."""
    return _of_gpt2(settings, "vocab_file")


def merge_file(settings: Settings) -> Worked | None:
    """Return GPT-2's merges."""
    return _of_gpt2(settings, "merge_file")


def tokenizer_file(settings: Settings) -> Worked | None:
    """Return the tokenizer.json, which a model's name or folder stands for."""
    if tokenizer_type(settings).value == "gpt2":
        return None
    name = _file_name(settings)
    if not name:
        return Worked("data/tokenizer.json", ("tokenizer_type",), "to be put there: the source names no file")
    given = str(settings.value(name))
    if given.endswith(".json"):
        return Worked(given, (name,))
    folder = PurePosixPath(given).parent if PurePosixPath(given).suffix == ".model" else PurePosixPath(given)
    return Worked(str(folder / "tokenizer.json"), (name,), f"{given} has to be there as a tokenizer.json")


def data_path(settings: Settings) -> Worked | None:
    """Return the token file if there is one."""
    name, given = _paths(settings)
    return Worked(given[0], (name,)) if len(given) == 1 else None


def blend(settings: Settings) -> Worked | None:
    """Return several token files with their weights."""
    name, given = _paths(settings)
    if len(given) < 2:
        return None
    if not (is_weighted := len(given) % 2 == 0 and all(_is_number(weight) for weight in given[::2])):
        given = [part for path in given for part in ("1", path)]
    change = "token files without weights are mixed by their sizes there; here each has weight 1: write others"
    parts = [{"weight": float(weight), "path": path} for weight, path in zip(given[::2], given[1::2], strict=True)]
    return Worked(parts, (name,), lost=() if is_weighted else ((name, change),))


def split(settings: Settings) -> Worked | None:
    """Return the shares of training, validation and test; the source may leave out the last ones, and write 9/1/0."""
    if trains_on_all(settings):
        idle = (("split", "it cuts the files of --data-path alone"),)
        return Worked("100,0,0", ("train_data_path",), "its files are for training alone", idle=idle)
    given = settings.value("split")
    if given is None:
        return None
    parts = re.findall(r"[.0-9]+", str(given))  # also in quotes, as parse_and_normalize_split reads it
    return Worked(",".join(parts + ["0"] * (3 - len(parts))), ("split",))


def trains_on_all(settings: Settings) -> bool:
    """Say whether token files are named for training alone (blend_per_split of BlendedMegatronDatasetConfig)."""
    return not settings.value("data_path") and bool(settings.value("train_data_path"))


def reset_position_ids(settings: Settings) -> Worked | None:
    """Return whether positions start again after a document, of which rope takes no notice there."""
    name = "reset_position_ids"
    if settings.value(name) and position_embedding_type(settings).value == "rope":
        return Worked(None, (), idle=((name, "rope counts from the beginning of the sequence"),))
    return Worked(bool(settings.value(name)), (name,))


def _of_gpt2(settings: Settings, name: str) -> Worked | None:
    if tokenizer_type(settings).value == "gpt2":
        given = settings.value(name)
        return None if given is None else Worked(given, (name,))
    why = f"the tokenizer {settings.value('tokenizer_type')} does not read it"
    return Worked(None, (), idle=((name, why),)) if _file_name(settings) != name else None


def _file_name(settings: Settings) -> str:
    """Return the name of the setting that says where the tokenizer is; empty without one."""
    return next((name for name in _NAMED if settings.value(name) is not None), "")


def _paths(settings: Settings) -> tuple[str, list[str]]:
    name = next((name for name in ("data_path", "train_data_path") if settings.value(name)), "data_path")
    given: Any = settings.value(name, [])
    folder = settings.value("aml_data_download_path")
    parts = [str(part) for part in (given if isinstance(given, list) else str(given).split())]
    return name, [part if folder is None or _is_number(part) else f"{folder}/{part}" for part in parts]


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
