"""Weights of a checkpoint, for looking at them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint import storage
from pretrain.checkpoint.foreign_checkpoints import foreign_checkpoints
from pretrain.collective_errors import of_first_rank
from pretrain.errors import DamageError
from pretrain.training.saving import start_from

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pretrain.engine.protocol import ForwardEngine
    from pretrain.recipe import Recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Origin of loaded weights.

    Attributes:
        path: the folder of the one checkpoint.
        format: its format's name.
        iteration: of the training; None where the files do not tell.
        notices: what the user should know.
    """

    path: Path
    format: str
    iteration: int | None
    notices: Sequence[str] = ()


def load_weights(engine: ForwardEngine, path: Path) -> Origin:
    """Load weights alone; all ranks together. Nothing is written.

    Args:
        engine: the model.
        path: the folder of a run, of its checkpoints (the latest is taken), or of one checkpoint.

    Raises:
        DamageError: the content of a file has changed.
        CheckpointError: there is no checkpoint, an incomplete one, or one of another model.
    """
    found = of_first_rank(partial(foreign_checkpoints().summary_of, path))
    notices: Sequence[str] = ()
    if found.format == "pretrain":
        notices = _load_ours(engine, found.path)
    else:  # its remarks are about a training that would follow; `path` is not where a run of that directory saves
        start_from(_weights_alone(engine.recipe, path), engine, path, resume=False)
    return Origin(path=found.path, format=found.format, iteration=found.iteration, notices=notices)


def _load_ours(engine: ForwardEngine, directory: Path) -> Sequence[str]:
    try:
        return storage.load(engine, directory, weights_only=True).notices
    except DamageError as error:
        msg = f"{error}\nName another checkpoint by its own folder, such as {directory.parent}/iter_0000100."
        raise DamageError(msg) from error


def _weights_alone(recipe: Recipe, path: Path) -> Recipe:
    """Return the recipe of a run that starts from these weights and saves nothing."""
    section = recipe.checkpoint.model_copy(update={"load": str(path), "finetune": True, "save": False})
    return recipe.model_copy(update={"checkpoint": section})
