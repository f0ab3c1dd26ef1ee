"""Keys of the sections `checkpoint` and `evaluation` that several settings make together.

`is_save_iter`, `train` and `evaluate_and_print_results` (megatron/training.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.values.checkpoint_folders import note_on_start
from pretrain.tools.migrate.values.neox.nested import stated, whole
from pretrain.tools.migrate.values.neox.text import has_own_evaluation_text
from pretrain.tools.migrate.values.worked import Worked

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings

_FACTOR, _SCALE = "checkpoint_factor", "checkpoint_scale"


def load(settings: Settings) -> Worked | None:
    """Return the folder to start from, which may be the empty one that the run itself fills."""
    given = settings.value("load")
    if given is None:
        return None
    return Worked(given, ("load",), note_on_start(settings, given))


def finetune(settings: Settings) -> Worked | None:
    """Return whether only the weights are loaded."""
    if not settings.value("finetune"):
        return None
    if settings.value("load") is None:
        return Worked(None, (), idle=(("finetune", "nothing is loaded"),))
    return Worked(True, ("finetune",))


def save_interval(settings: Settings) -> Worked | None:
    """Return the iterations between two checkpoints, which are as many every time here."""
    if settings.value(_FACTOR) is None:
        return None
    if settings.value("save") is None:
        return Worked(None, (), idle=((_FACTOR, "without save nothing is saved"),))
    if settings.value(_SCALE, "linear") != "linear":
        change = "checkpoints are saved at multiples of a number, not at its powers; here only at the end"
        return Worked(None, (), lost=((_FACTOR, change),))
    return Worked(whole(settings, _FACTOR, 0), (_FACTOR, *stated(settings, _SCALE)))


def keep(settings: Settings) -> Worked | None:
    """Return the number of latest checkpoints that are kept."""
    name = "keep_last_n_checkpoints"
    given = settings.value(name)
    if given is None or settings.value("save") is not None:
        return None if given is None else Worked(given, (name,))
    return Worked(None, (), idle=((name, "without save nothing is saved"),))


def evaluation_interval(settings: Settings) -> Worked | None:
    """Return the iterations between two evaluations: 0 without iterations of one, or text that is held out."""
    if has_own_evaluation_text(settings):
        change = "text for evaluation is a share of the training files here; valid_data_paths is not read"
        return Worked(0, ("train_data_paths",), lost=(("eval_interval", change),))
    if settings.value("eval_iters") == 0:
        return Worked(0, ("eval_iters",))
    given = settings.value("eval_interval")
    return None if given is None else Worked(given, ("eval_interval",))


def evaluation_iters(settings: Settings) -> Worked | None:
    """Return the global batches of an evaluation."""
    found = evaluation_interval(settings)
    if found is not None and found.value == 0:
        return (
            Worked(None, (), idle=(("eval_iters", "nothing is evaluated"),)) if settings.value("eval_iters") else None
        )
    given = settings.value("eval_iters")
    return Worked(given, ("eval_iters",)) if given else None
