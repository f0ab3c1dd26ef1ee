"""Tokenizer, token files, checkpoints, evaluation and metrics."""

# Sources: megatron/tokenizer/tokenizer.py, megatron/data/gpt_dataset.py and megatron/core/datasets of Megatron-LM;
# parse_data_paths in megatron/arguments.py of bigscience's Megatron-DeepSpeed; save_checkpoint, load_checkpoint and
# load_args_from_checkpoint in megatron/training/checkpointing.py, before 2024 in megatron/checkpointing.py.

from __future__ import annotations

import re
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.megatron.model import position_embedding_type
from pretrain.tools.migrate.setting import Derived, note_on_start, save, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_HUB_CLASSES = ("HFTokenizer", "HuggingFaceTokenizer", "PretrainedFromHF")
_TYPES = {"GPT2BPETokenizer": "gpt2", **dict.fromkeys(_HUB_CLASSES, "huggingface")}


def _tokenizer_type(settings: Settings) -> Derived:
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    if given in _TYPES:
        return Derived(_TYPES[given], ("tokenizer_type",))
    change = f"{given} is not supported; give a tokenizer.json of the same vocabulary instead"
    return Derived("huggingface", ("tokenizer_type",), lost=(("tokenizer_type", change),))


def tokenizer_file(settings: Settings) -> Derived | None:
    """Return the tokenizer.json, which a model's name or folder stands for."""
    if _tokenizer_type(settings).value == "gpt2":
        return None
    name = _file_name(settings)
    if not name:
        return Derived("data/tokenizer.json", ("tokenizer_type",), "put it there: the source names no file")
    given = str(settings.value(name))
    if given.endswith(".json"):
        return Derived(given, (name,))
    folder = PurePosixPath(given).parent if PurePosixPath(given).suffix == ".model" else PurePosixPath(given)
    return Derived(str(folder / "tokenizer.json"), (name,), f"{given} has to be converted to a tokenizer.json")


def _of_gpt2(settings: Settings, name: str) -> Derived | None:
    if _tokenizer_type(settings).value == "gpt2":
        given = settings.value(name)
        return None if given is None else Derived(given, (name,))
    why = f"the tokenizer {settings.value('tokenizer_type')} does not read it"
    return unused(name, why) if _file_name(settings) != name else None


def _file_name(settings: Settings) -> str:
    return settings.first("tokenizer_model", "tokenizer_name_or_path", "vocab_file")


def _data_path(settings: Settings) -> Derived | None:
    name, given = _paths(settings)
    return Derived(given[0], (name,)) if len(given) == 1 else None


def _blend(settings: Settings) -> Derived | None:
    name, given = _paths(settings)
    if len(given) < 2:
        return None
    if not (is_weighted := len(given) % 2 == 0 and all(is_number(weight) for weight in given[::2])):
        given = [part for path in given for part in ("1", path)]
    change = "token files without weights are mixed by their sizes there; here each has weight 1: change the weights"
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
    return name, [part if folder is None or is_number(part) else f"{folder}/{part}" for part in parts]


def is_number(text: str) -> bool:
    """Say whether a text can be the weight of a token file."""
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _save_interval(settings: Settings) -> Derived | None:
    name = "save_interval"
    if settings.value(name) is not None and settings.value("save") is None:
        return unused(name, "without --save nothing is saved")
    return taken(settings, name)


def _finetune(settings: Settings) -> Derived | None:
    name = settings.first_on("finetune", "no_load_optim")
    if not name:
        return None
    if settings.value("load") is None:
        return unused(name, "nothing is loaded")
    change = "the run starts at iteration 0; the program would count on from the checkpoint's iteration"
    return Derived(True, (name,), lost=((name, change),) if name == "no_load_optim" else ())


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from; --pretrained-checkpoint counts where --load has nothing yet."""
    name = settings.first("load", "pretrained_checkpoint")
    if not name:
        return None
    given = settings.value(name)
    change = "the program takes it if --load is empty; here the run always starts from checkpoint.load"
    both = name == "load" and settings.value("pretrained_checkpoint") is not None
    lost = (("pretrained_checkpoint", change),) if both else ()
    return Derived(given, (name,), note_on_start(settings, given), lost=lost)


def evaluation_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two evaluations; none without iterations of one."""
    if settings.value("eval_iters") == 0:
        return Derived(0, ("eval_iters",))
    if trains_on_all(settings):
        why = "no validation text is left: all of --train-data-path is for training"
        return Derived(0, ("train_data_path",), why, idle=(("eval_interval", why),))
    never = "without --eval-interval the program never evaluates in training"
    return taken(settings, "eval_interval") or Derived(0, ("eval_interval",), never)


def _log_timers(settings: Settings) -> Derived | None:
    name = settings.first_on("log_timers_to_tensorboard", "timing_log_level")
    return Derived(True, (name,)) if name else None


def _loggers(settings: Settings) -> Derived | None:
    """Return Weights & Biases beside TensorBoard, where it has a project."""
    name = settings.first_on("wandb_project")
    return Derived(["tensorboard", "wandb"], (name,)) if name else None


FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": _tokenizer_type,
    "tokenizer.vocab_file": partial(_of_gpt2, name="vocab_file"),
    "tokenizer.merge_file": partial(_of_gpt2, name="merge_file"),
    "tokenizer.file": tokenizer_file,
    "data.path": _data_path,
    "data.blend": _blend,
    "data.split": split,
    "data.reset_position_ids": reset_position_ids,
    "data.reset_attention_mask": reset_attention_mask,
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.save_interval": _save_interval,
    "checkpoint.finetune": _finetune,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": partial(taken_if_on, name="eval_iters"),
    "logging.log_timers": _log_timers,
    "logging.loggers": _loggers,
}
