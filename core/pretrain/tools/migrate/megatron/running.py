"""Checkpoints, evaluation and metrics."""

# Source: save_checkpoint, load_checkpoint and load_args_from_checkpoint in megatron/training/checkpointing.py, before
# 2024 in megatron/checkpointing.py.

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.megatron.data import trains_on_all
from pretrain.tools.migrate.setting import Derived, note_on_start, save, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings


def save_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two checkpoints."""
    name = "save_interval"
    if settings.value(name) is not None and settings.value("save") is None:
        return unused(name, "without --save nothing is saved")
    return taken(settings, name)


def finetune(settings: Settings) -> Derived | None:
    """Return whether only the weights are loaded."""
    name = settings.first_on("finetune", "no_load_optim")
    if not name:
        return None
    if settings.value("load") is None:
        return unused(name, "nothing is loaded")
    change = "the run starts at iteration 0, while there the iterations of the checkpoint go on"
    return Derived(True, (name,), lost=((name, change),) if name == "no_load_optim" else ())


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from; --pretrained-checkpoint counts where --load has nothing yet."""
    name = settings.first("load", "pretrained_checkpoint")
    if not name:
        return None
    given = settings.value(name)
    change = "it would be taken where --load is empty; here checkpoint.load is what the run starts from"
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


def evaluation_iters(settings: Settings) -> Derived | None:
    """Return the global batches of an evaluation."""
    return taken_if_on(settings, "eval_iters")


def log_timers(settings: Settings) -> Derived | None:
    """Return whether the phases of an iteration are timed."""
    name = settings.first_on("log_timers_to_tensorboard", "timing_log_level")
    return Derived(True, (name,)) if name else None


FUNCTIONS: Mapping[str, Function] = {
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.save_interval": save_interval,
    "checkpoint.finetune": finetune,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": evaluation_iters,
    "logging.log_timers": log_timers,
}
