"""Keys of the sections `checkpoint`, `evaluation` and `logging` that several flags make together.

save_checkpoint_and_time and evaluate_and_print_results (megatron/training/training.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.checkpoint_folders import note_on_start
from pretrain.tools.migrate.values.megatron.text import trains_on_all
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_WEIGHTS_ALONE = ("finetune", "no_load_optim")


def save_interval(settings: Settings) -> Worked | None:
    """Return the iterations between two checkpoints."""
    given = settings.value("save_interval")
    if given is None:
        return None
    if settings.value("save") is None:
        return Worked(None, (), idle=(("save_interval", "without --save nothing is saved"),))
    return Worked(given, ("save_interval",))


def finetune(settings: Settings) -> Worked | None:
    """Return whether only the weights are loaded."""
    name = next((name for name in _WEIGHTS_ALONE if settings.value(name)), None)
    if name is None:
        return None
    if settings.value("load") is None:
        return Worked(None, (), idle=((name, "nothing is loaded"),))
    change = "the run starts at iteration 0, while there the iterations of the checkpoint go on"
    return Worked(True, (name,), lost=((name, change),) if name == "no_load_optim" else ())


def evaluation_interval(settings: Settings) -> Worked | None:
    """Return the iterations between two evaluations; none without iterations of one."""
    if settings.value("eval_iters") == 0:
        return Worked(0, ("eval_iters",))
    if trains_on_all(settings):
        why = "no validation text is left: all of --train-data-path is for training"
        return Worked(0, ("train_data_path",), why, idle=(("eval_interval", why),))
    given = settings.value("eval_interval")
    if given is None:
        return Worked(0, ("eval_interval",), "without --eval-interval the program never evaluates in training")
    return Worked(given, ("eval_interval",))


def evaluation_iters(settings: Settings) -> Worked | None:
    """Return the global batches of an evaluation."""
    given = settings.value("eval_iters")
    return Worked(given, ("eval_iters",)) if given else None


def log_timers(settings: Settings) -> Worked | None:
    """Return whether the phases of an iteration are timed."""
    if settings.value("log_timers_to_tensorboard"):
        return Worked(True, ("log_timers_to_tensorboard",))
    return Worked(True, ("timing_log_level",)) if settings.value("timing_log_level") else None


def load(settings: Settings) -> Worked | None:
    """Return the folder to start from; --pretrained-checkpoint counts where --load has nothing yet."""
    name = next((name for name in ("load", "pretrained_checkpoint") if settings.value(name) is not None), None)
    if name is None:
        return None
    change = "it would be taken where --load is empty; here checkpoint.load is what the run starts from"
    both = name == "load" and settings.value("pretrained_checkpoint") is not None
    given = settings.value(name)
    return Worked(
        given, (name,), note_on_start(settings, given), lost=(("pretrained_checkpoint", change),) if both else ()
    )


def manual_gc_interval(settings: Settings) -> Worked | None:
    """Return the iterations between two collections; 0 leaves the interval as it is here."""
    given = settings.value("manual_gc_interval")
    return Worked(given, ("manual_gc_interval",)) if given and "manual_gc_interval" in settings.stated else None


def reset_attention_mask(settings: Settings) -> Worked | None:
    """Return whether a token sees only its own document."""
    names = ("reset_attention_mask", "dataloader_inter_document_masking")
    stated = tuple(name for name in names if settings.value(name))
    return Worked(True, stated) if stated else Worked(False, names)
