"""Values that a DeepSpeed file and the flags both state, and that have to agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.outcome import Outcome
from pretrain.tools.migrate.values.megatron.batches import data_parallel_size
from pretrain.tools.migrate.values.megatron.deepspeed.deepspeed_engine import place_in, stage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.recipe.deepspeed.translation import Given
    from pretrain.tools.migrate.setting import Settings
    from pretrain.tools.migrate.values.worked import Worked

_GLOBAL, _MICRO = "train.global_batch_size", "train.micro_batch_size"
_ACCUMULATION = "gradient_accumulation_steps"


def check_stage(settings: Settings, file: JsonFile) -> None:
    """Check --zero-stage, by which Megatron-DeepSpeed builds the model, against the stage of the file.

    Raises:
        MigrateError: they differ.
    """
    flag = settings.stated.get("zero_stage")
    if flag is None or flag.value is None or flag.value == stage(settings):
        return
    of_file = f"{file.place('zero_optimization.stage')} is {stage(settings)}"
    msg = (
        f"{flag.place}: {flag.written} {flag.value:g}, but {of_file}.\n"
        "The program needs both to be the same: change one of them."
    )
    raise MigrateError(msg)


def check_value(settings: Settings, file: JsonFile, given: Given, flag: Worked | None) -> None:
    """Check a key that the flags give too.

    Raises:
        MigrateError: they contradict each other.
    """
    if flag is None or flag.value is None or (flag.value == given.value) == (given.kind == "is"):
        return
    stated: Any = given.value if given.kind == "is" else f"not {given.value}"
    msg = (
        f"{file.place(given.json_path)} says {given.path} {stated}, but {_written(settings, flag)} says {flag.value}.\n"
        "DeepSpeed and Megatron would not agree: change one of the two."
    )
    raise MigrateError(msg)


def accumulation(settings: Settings, file: JsonFile, steps: int, flags: Mapping[str, Worked]) -> Outcome:
    """Return the outcome of gradient_accumulation_steps, which follows from the batches and the devices.

    Raises:
        MigrateError: it is another number than that.
    """
    place = place_in(file, _ACCUMULATION)
    replicas, whole, micro = data_parallel_size(settings), flags.get(_GLOBAL), flags.get(_MICRO)
    if replicas is None or whole is None or micro is None or not whole.value or not micro.value:
        why = "it follows from the two batch sizes and the number of devices"
        return Outcome("no effect", _ACCUMULATION, why, place)
    if steps * micro.value * replicas != whole.value:
        msg = (
            f"{file.place(_ACCUMULATION)}: {steps} micro batches of {micro.value} on {replicas} replicas are no global "
            f"batch of {whole.value}, which {_written(settings, whole)} says.\nChange one of them."
        )
        raise MigrateError(msg)
    text = f"{_GLOBAL} ({steps} x {micro.value} x {replicas} replicas)"
    return Outcome("carried over", _ACCUMULATION, text, place, (_GLOBAL,))


def _written(settings: Settings, flag: Worked) -> str:
    """Return the settings that a value comes from, with their lines."""
    found = [setting for setting in map(settings.setting, flag.names) if setting is not None]
    stated = [f"{setting.written} ({setting.place})" for setting in found if setting.place is not None]
    return ", ".join(stated) or ", ".join(f"the default of {setting.written}" for setting in found) or "the program"
