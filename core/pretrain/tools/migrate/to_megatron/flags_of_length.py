"""Flags of batches, of the training's length, of checkpoints, evaluation and logging.

validate_args (megatron/training/arguments.py); get_optimizer_param_scheduler, get_train_valid_test_num_samples and
pretrain (megatron/training/training.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.sections.iteration_ranges import ranges
from pretrain.tools.migrate.to_megatron.answer import NOTHING, Answer
from pretrain.tools.migrate.to_megatron.flag_words import given

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe import Recipe
    from pretrain.tools.migrate.to_megatron.answer import Function

_FOLDER = "checkpoints"
_TENSORBOARD = "tensorboard"
_MOST_WRITTEN = 3000
"""Iterations that are written one by one."""
_ANY_INTERVAL = 1000
"""An interval that is never reached: without one the number of validation samples cannot be worked out."""


def rampup_batch_size(recipe: Recipe) -> Answer:
    """Return start, increment and samples."""
    numbers = recipe.train.rampup_batch_size
    return NOTHING if numbers is None else Answer((given("rampup_batch_size", *numbers),))


def iterations_to_skip(recipe: Recipe) -> Answer:
    """Return the iterations that are left out, which Megatron-LM counts from 0, one by one; too many are no command."""
    found = ranges(recipe.train.iterations_to_skip)
    count = sum(last - first + 1 for first, last in found)
    if count > _MOST_WRITTEN:
        return Answer(change=f"Megatron-LM needs them one by one, and {count} numbers are too long for a command")
    numbers = [number - 1 for first, last in found for number in range(first, last + 1)]
    return Answer((given("iterations_to_skip", *numbers),)) if numbers else NOTHING


def train_iters(recipe: Recipe) -> Answer:
    """Return the length in iterations; without one the schedule cannot be made, unless nothing is trained."""
    iters = recipe.train.train_iters
    if iters is None:
        return NOTHING
    length = given("train_iters", iters)
    return Answer((length,)) if iters else Answer((length, given("skip_train")))


def manual_gc(recipe: Recipe) -> Answer:
    """Return the switch of the collector."""
    return Answer((given("manual_gc"),)) if recipe.train.manual_gc else NOTHING


def save(recipe: Recipe) -> Answer:
    """Return the folder of checkpoints; there is no run directory, but the working directory."""
    folder = recipe.checkpoint.save
    if folder is False:
        return NOTHING
    change = "" if recipe.train.train_iters != 0 else "after --skip-train nothing is saved"
    return Answer((given("save", _FOLDER if folder is True else folder),), change)


def save_interval(recipe: Recipe) -> Answer:
    """Return the interval, which --save needs; for 0 one that ends with the training, where it saves anyway."""
    if recipe.checkpoint.save is False:
        return NOTHING
    length = recipe.train.train_iters or recipe.train.train_samples or _ANY_INTERVAL
    return Answer((given("save_interval", recipe.checkpoint.save_interval or length),))


def async_save(recipe: Recipe) -> Answer:
    """Return the switch, with the one without which it is switched off."""
    if not recipe.checkpoint.async_save:
        return NOTHING
    return Answer((given("async_save"), given("use_persistent_ckpt_worker")))


def evaluation_interval(recipe: Recipe) -> Answer:
    """Return the interval, which has no default there; evaluations are off without iterations of one."""
    interval = recipe.evaluation.interval
    if interval:
        return Answer((given("eval_interval", interval),))
    return Answer((given("eval_interval", _ANY_INTERVAL), given("eval_iters", 0)))


def tensorboard(recipe: Recipe) -> Answer:
    """Return the folder of TensorBoard's files, which switches them on."""
    return Answer((given("tensorboard_dir", _TENSORBOARD),)) if recipe.logging.tensorboard else NOTHING


def log_timers(recipe: Recipe) -> Answer:
    """Return the level at which the phases of an iteration are timed."""
    return Answer((given("timing_log_level", 1),)) if recipe.logging.log_timers else NOTHING


LENGTH_FUNCTIONS: Mapping[str, Function] = {
    "train.rampup_batch_size": rampup_batch_size,
    "train.iterations_to_skip": iterations_to_skip,
    "train.train_iters": train_iters,
    "train.manual_gc": manual_gc,
    "checkpoint.save": save,
    "checkpoint.save_interval": save_interval,
    "checkpoint.async_save": async_save,
    "evaluation.interval": evaluation_interval,
    "logging.tensorboard": tensorboard,
    "logging.log_timers": log_timers,
}
"""By key."""
