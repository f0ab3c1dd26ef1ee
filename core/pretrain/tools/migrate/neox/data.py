"""GPT-NeoX's tokenizer, token files, checkpoints, evaluation and logs: NeoXArgsTokenizer, -Training and -Logging."""

from __future__ import annotations

from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.neox.objects import refused, stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, note_on_start, save, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.migrate.setting import Function, Settings

_TYPES = {"gpt2bpetokenizer": "gpt2", "hftokenizer": "huggingface"}
_PATHS = "train_data_paths"
_FACTOR, _SCALE = "checkpoint_factor", "checkpoint_scale"


def _tokenizer_type(settings: Settings) -> Derived:
    given = settings.value("tokenizer_type", "GPT2BPETokenizer")
    kind = _TYPES.get(str(given).lower())
    if kind is not None:
        return Derived(kind, ("tokenizer_type",))
    change = f"{given} is not supported; give a tokenizer.json of the same vocabulary instead"
    return in_place("huggingface", "tokenizer_type", change)


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
        return Derived("data/tokenizer.json", (), "put it there: the source names no file")
    if str(given).endswith(".json"):
        return Derived(given, ("vocab_file",))
    beside = PurePosixPath(str(given)).parent / "tokenizer.json"
    return Derived(str(beside), ("vocab_file",), f"{given} has to be converted to a tokenizer.json")


def _is_gpt2(settings: Settings) -> bool:
    return bool(_tokenizer_type(settings).value == "gpt2")


def own_files(settings: Settings, split: str) -> Derived | None:
    """Return the token files of a split, with their weights, which are equal by default."""
    names = (f"{split}_data_paths", f"{split}_data_weights")
    parts = _parts(settings, *names)
    if parts is None:
        return None
    return Derived(parts[0]["path"] if len(parts) == 1 else parts, names)


def split(settings: Settings) -> Derived | None:
    """Return the shares of training, validation and test in `data_path`."""
    given = settings.value("split")
    if given is None:
        return None
    if settings.value(_PATHS):
        return unused("split", "train_data_paths, valid_data_paths and test_data_paths are not split")
    shares = [share.strip() for share in str(given).replace("/", ",").split(",") if share.strip()]
    return Derived(",".join([*shares, *["0"] * (3 - len(shares))]), ("split",))


def _parts(settings: Settings, of_paths: str, of_weights: str) -> list[dict[str, Any]] | None:
    paths: Any = settings.value(of_paths)
    if not paths:
        return None
    paths = paths if isinstance(paths, list) else [paths]
    weights: Any = settings.value(of_weights, [1.0] * len(paths))
    if not isinstance(weights, list) or len(weights) != len(paths):
        why = f"{len(paths)} files need as many weights"
        raise refused(settings, of_weights, why, f"Give {of_weights} a number for each of {of_paths}")
    parts = [{"weight": weight, "path": path} for weight, path in zip(weights, paths, strict=True)]
    return [part for part in parts if part["weight"] != 0] or parts


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from, which may be the empty one that the run itself fills."""
    given = settings.value("load")
    return None if given is None else Derived(given, ("load",), note_on_start(settings, given))


def _finetune(settings: Settings) -> Derived | None:
    if not settings.value("finetune"):
        return None
    if settings.value("load") is None:
        return unused("finetune", "nothing is loaded")
    return Derived(True, ("finetune",))


def save_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two checkpoints, which are as many every time here."""
    if settings.value(_FACTOR) is None:
        return None
    if settings.value("save") is None:
        return unused(_FACTOR, "without save nothing is saved")
    if settings.value(_SCALE, "linear") != "linear":
        change = "checkpoints are saved at multiples of a number, not at its powers; here only at the end"
        return in_place(None, _FACTOR, change)
    return Derived(whole(settings, _FACTOR, 0), (_FACTOR, *stated(settings, _SCALE)))


def _keep(settings: Settings) -> Derived | None:
    name = "keep_last_n_checkpoints"
    if settings.value(name) is None or settings.value("save") is not None:
        return taken(settings, name)
    return unused(name, "without save nothing is saved")


def evaluation_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two evaluations: 0 without iterations of one."""
    if settings.value("eval_iters") == 0:
        return Derived(0, ("eval_iters",))
    return taken(settings, "eval_interval")


def evaluation_iters(settings: Settings) -> Derived | None:
    """Return the global batches of an evaluation."""
    found = evaluation_interval(settings)
    if found is not None and found.value == 0:
        return unused("eval_iters", "nothing is evaluated") if settings.value("eval_iters") else None
    return taken_if_on(settings, "eval_iters")


_TRACKERS = {
    "wandb_project": ("use_wandb", "wandb_project"),
    "wandb_entity": ("use_wandb", "wandb_team"),
    "wandb_group": ("use_wandb", "wandb_group"),
    "wandb_exp_name": ("use_wandb", "wandb_run_name"),
    **{
        name: ("use_comet", name)
        for name in ("comet_project", "comet_workspace", "comet_experiment_name", "comet_tags")
    },
}
"""Switch and setting by key of section logging."""


def _loggers(settings: Settings) -> Derived | None:
    """Return the trackers that are switched on, beside TensorBoard."""
    on = tuple(name for name in ("use_wandb", "use_comet") if settings.value(name) is True)
    if settings.value("use_wandb") is None and stated(settings, "wandb_project", "wandb_group", "wandb_team"):
        change = "GPT-NeoX logs to W&B where it finds a login: give logging.loggers [tensorboard, wandb] for that"
        return Derived(["tensorboard", *_trackers(on)] if on else None, on, lost=(("use_wandb", change),))
    return Derived(["tensorboard", *_trackers(on)], on) if on else None


def _trackers(switches: Sequence[str]) -> list[str]:
    return [switch.removeprefix("use_") for switch in switches]


def _of_tracker(settings: Settings, switch: str, name: str) -> Derived | None:
    is_on = settings.value(switch) is True
    return taken(settings, name) if is_on else unused(name, f"it belongs to {switch}")


FUNCTIONS: Mapping[str, Function] = {
    "tokenizer.type": _tokenizer_type,
    "tokenizer.vocab_file": lambda settings: taken(settings, "vocab_file") if _is_gpt2(settings) else None,
    "tokenizer.merge_file": merge_file,
    "tokenizer.file": tokenizer_file,
    "data.path": partial(taken, name="data_path"),
    **{f"data.{each}_data_path": partial(own_files, split=each) for each in ("train", "valid", "test")},
    "data.split": split,
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.finetune": _finetune,
    "checkpoint.save_interval": save_interval,
    "checkpoint.keep": _keep,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": evaluation_iters,
    "logging.loggers": _loggers,
    **{f"logging.{key}": partial(_of_tracker, switch=on, name=name) for key, (on, name) in _TRACKERS.items()},
}
