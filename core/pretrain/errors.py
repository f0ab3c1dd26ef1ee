"""User errors: two or three lines, no traceback, exit code 2."""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def shows_traceback() -> bool:
    """Say whether the user asks for the traceback of an error: PRETRAIN_TRACEBACK is neither empty nor 0."""
    return os.environ.get("PRETRAIN_TRACEBACK", "0") not in {"", "0"}


class PretrainError(Exception):
    """Base of all user errors; the message says what was given, what is allowed and what to do."""


class RecipeError(PretrainError):
    """A recipe, or an override of one, that cannot be run."""


class BackendError(PretrainError):
    """A backend that is missing, broken, without a device, or unable to do what the recipe asks."""


class DeviceError(BackendError):
    """A device that is missing; it may be there again later."""


class KernelError(PretrainError):
    """An operation for which no allowed kernel is left."""


class DataError(PretrainError):
    """A corpus, a tokenizer or a token file that cannot be used."""


class CheckpointError(PretrainError):
    """A checkpoint that is missing, damaged, or of another model."""


class DamageError(CheckpointError):
    """A damaged file of a checkpoint; raised on every rank."""


class MisnamedError(DamageError):
    """A checkpoint whose folder has the name of another iteration; the files are intact."""


class StoreError(CheckpointError, DataError):
    """An object store that cannot be read or written: checkpoints, or data."""


class OtherRankError(CheckpointError):
    """A failure that another rank has found, and shows, while all of them wrote a checkpoint."""


class TrainingError(PretrainError):
    """A training that cannot continue, such as one with a loss that is no longer finite."""


class NotFiniteError(TrainingError):
    """A loss, gradients or weights that are not finite; a restart from the checkpoint may be without them."""


class TaskError(PretrainError):
    """A task of lm-evaluation-harness that cannot be evaluated."""


def without_lm_eval(missing: str = "lm_eval") -> TaskError:
    """Return the error where lm-eval, or a module that it needs, is not installed."""
    return TaskError(
        f"tasks are evaluated by lm-eval, which is not installed ({missing}).\nInstall it: pip install 'pretrain[eval]'"
    )


class LaunchError(PretrainError):
    """Processes that cannot be started, or do not fit the recipe's layout."""


class LostRanksError(LaunchError):
    """Ranks that give no word (so many, where it is known); a restart may be without the cause."""

    def __init__(self, message: str, ranks: int = 0) -> None:
        super().__init__(message)
        self.ranks = ranks


class RunError(PretrainError):
    """A run directory that is missing, damaged, or already holds another run."""


class InUseError(RunError):
    """A run directory in which another process trains; it may end."""


class MigrateError(PretrainError):
    """A script, or a file of settings, of another program that cannot be read."""


def did_you_mean(given: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return " Did you mean 'x'?" for the known word nearest to the given one, or an empty string."""
    near = difflib.get_close_matches(given, list(known), n=1, cutoff=cutoff)
    return f" Did you mean '{near[0]}'?" if near else ""
