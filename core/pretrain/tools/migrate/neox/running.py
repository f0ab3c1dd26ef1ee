"""GPT-NeoX's settings of checkpoints, evaluation and logs (NeoXArgsTraining, NeoXArgsLogging)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.neox.data import has_own_evaluation_text
from pretrain.tools.migrate.neox.objects import stated, whole
from pretrain.tools.migrate.setting import Derived, in_place, note_on_start, save, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.setting import Function, Settings

_FACTOR, _SCALE = "checkpoint_factor", "checkpoint_scale"


def load(settings: Settings) -> Derived | None:
    """Return the folder to start from, which may be the empty one that the run itself fills."""
    given = settings.value("load")
    return None if given is None else Derived(given, ("load",), note_on_start(settings, given))


def finetune(settings: Settings) -> Derived | None:
    """Return whether only the weights are loaded."""
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


def keep(settings: Settings) -> Derived | None:
    """Return the number of latest checkpoints that are kept."""
    name = "keep_last_n_checkpoints"
    if settings.value(name) is None or settings.value("save") is not None:
        return taken(settings, name)
    return unused(name, "without save nothing is saved")


def evaluation_interval(settings: Settings) -> Derived | None:
    """Return the iterations between two evaluations: 0 without iterations of one, or text that is held out."""
    if has_own_evaluation_text(settings):
        change = "text for evaluation is a share of the training files here; valid_data_paths is not read"
        return Derived(0, ("train_data_paths",), lost=(("eval_interval", change),))
    if settings.value("eval_iters") == 0:
        return Derived(0, ("eval_iters",))
    return taken(settings, "eval_interval")


def evaluation_iters(settings: Settings) -> Derived | None:
    """Return the global batches of an evaluation."""
    found = evaluation_interval(settings)
    if found is not None and found.value == 0:
        return unused("eval_iters", "nothing is evaluated") if settings.value("eval_iters") else None
    return taken_if_on(settings, "eval_iters")


FUNCTIONS: Mapping[str, Function] = {
    "checkpoint.save": save,
    "checkpoint.load": load,
    "checkpoint.finetune": finetune,
    "checkpoint.save_interval": save_interval,
    "checkpoint.keep": keep,
    "evaluation.interval": evaluation_interval,
    "evaluation.iters": evaluation_iters,
}
