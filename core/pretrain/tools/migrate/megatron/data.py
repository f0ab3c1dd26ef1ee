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
    from collections.abc import Callable, Mapping

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


_COMMON = "data_path"
_OWN = ("train_data_path", "valid_data_path", "test_data_path")


def _data_path(settings: Settings) -> Derived | None:
    given = _paths(settings, _COMMON)
    return Derived(given[0], (_COMMON,)) if len(given) == 1 else None


def _blend(settings: Settings) -> Derived | None:
    given = _paths(settings, _COMMON)
    return _mixed(_COMMON, given) if len(given) > 1 else None


def _own_files(settings: Settings, name: str) -> Derived | None:
    given = _paths(settings, name)
    if given and settings.value(_COMMON):
        return unused(name, "it is not read beside --data-path")
    return _mixed(name, given) if len(given) > 1 else Derived(given[0], (name,)) if given else None


def _mixed(name: str, given: list[str]) -> Derived:
    """Return a list of {weight, path} of weights and paths, or of paths alone."""
    if not (is_weighted := len(given) % 2 == 0 and all(is_number(weight) for weight in given[::2])):
        given = [part for path in given for part in ("1", path)]
    change = "token files without weights are mixed by their sizes there; here each has weight 1: change the weights"
    parts = [{"weight": float(weight), "path": path} for weight, path in zip(given[::2], given[1::2], strict=True)]
    return Derived(parts, (name,), lost=() if is_weighted else ((name, change),))


def split(settings: Settings) -> Derived | None:
    """Return the shares of training, validation and test; the source may leave out the last ones, and write 9/1/0."""
    given = settings.value("split")
    if given is None:
        return None
    if not settings.value(_COMMON) and settings.first_on(*_OWN):
        return unused("split", "it cuts the files of --data-path alone")
    parts = re.findall(r"[.0-9]+", str(given))  # also in quotes, as parse_and_normalize_split reads it
    return Derived(",".join(parts + ["0"] * (3 - len(parts))), ("split",))


def _trains_alone(settings: Settings) -> bool:
    """Say whether token files are named for training and none for validation."""
    return not settings.first_on(_COMMON, "valid_data_path") and bool(settings.value("train_data_path"))


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


def _paths(settings: Settings, name: str) -> list[str]:
    given: Any = settings.value(name, [])
    folder = settings.value("aml_data_download_path")
    parts = [str(part) for part in (given if isinstance(given, list) else str(given).split())]
    return [part if folder is None or is_number(part) else f"{folder}/{part}" for part in parts]


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
    if _trains_alone(settings):
        why = "no validation text is left: all of --train-data-path is for training"
        return Derived(0, ("train_data_path",), why, idle=(("eval_interval", why),))
    never = "without --eval-interval the program never evaluates in training"
    return taken(settings, "eval_interval") or Derived(0, ("eval_interval",), never)


def _log_timers(settings: Settings) -> Derived | None:
    name = settings.first_on("log_timers_to_tensorboard", "timing_log_level")
    return Derived(True, (name,)) if name else None


def _profiles(settings: Settings) -> bool:
    """Say whether Megatron-LM's own --profile is on; other programs' has other flags."""
    return settings.program.name.startswith("megatron-lm") and bool(settings.value("profile"))


def _of_profile(settings: Settings, name: str, derived: Callable[[Any], Derived]) -> Derived | None:
    """Return what a setting of the profile becomes; without one the program does not read it."""
    if settings.value(name) is None:
        return None
    return derived(settings.value(name)) if _profiles(settings) else unused(name, "it belongs to profile")


def _profile_steps(settings: Settings) -> Derived | None:
    def derived(end: int) -> Derived:
        steps, names = end - settings.value("profile_step_start"), ("profile", "profile_step_end")
        return Derived(steps, names) if steps > 0 else unused(names, "it ends before it begins")

    if settings.value("profile") and not _profiles(settings):
        other = "its profiles have flags of their own: give profile.steps, and profile.start or ranks"
        return Derived(None, (), lost=(("profile", other),))
    return _of_profile(settings, "profile_step_end", derived)


def _profile_start(settings: Settings) -> Derived | None:
    def derived(start: int) -> Derived:
        return Derived(start + 1, ("profile_step_start",), "counted from 1")

    return _of_profile(settings, "profile_step_start", derived)


def _profile_ranks(settings: Settings) -> Derived | None:
    def derived(ranks: list[int]) -> Derived:
        everyone = list(range(settings.devices or 1))
        lost = (
            () if ranks or settings.devices else (("profile_ranks", "the number of ranks is not known: rank 0 alone"),)
        )
        return Derived(ranks or everyone, ("profile_ranks",), "" if ranks else "all ranks", lost)

    return _of_profile(settings, "profile_ranks", derived)


def _use_pytorch_profiler(settings: Settings) -> Derived | None:
    return _of_profile(settings, "use_pytorch_profiler", lambda given: Derived(given, ("use_pytorch_profiler",)))


def _profile_memory(settings: Settings) -> Derived | None:
    name = "record_memory_history"
    if not settings.value(name):
        return None
    if not _profiles(settings):
        return Derived(None, (), lost=((name, "allocations are recorded in a profile alone: give profile.steps"),))
    return Derived(True, (name,), "of the profiled steps")


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
    **{f"data.{name}": partial(_own_files, name=name) for name in _OWN},
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
    "profile.start": _profile_start,
    "profile.steps": _profile_steps,
    "profile.ranks": _profile_ranks,
    "profile.use_pytorch_profiler": _use_pytorch_profiler,
    "profile.memory": _profile_memory,
}
