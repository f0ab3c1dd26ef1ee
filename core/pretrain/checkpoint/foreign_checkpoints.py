"""Checkpoints of other programs, which a tool reads: imported only where a run starts from a checkpoint."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.contents import Loaded, Saved
    from pretrain.recipe import Recipe


class ForeignSummary(Protocol):
    """A checkpoint of any program; `format` is "pretrain" for ours, `iteration` None where the files do not tell."""

    @property
    def path(self) -> Path: ...  # noqa: D102
    @property
    def format(self) -> str: ...  # noqa: D102
    @property
    def iteration(self) -> int | None: ...  # noqa: D102


class ForeignCheckpoints(Protocol):
    """Functions of pretrain.tools.convert.trainer_calls."""

    def summary_of(self, path: Path) -> ForeignSummary:
        """Return the checkpoint at a path, of whichever program."""

    def foreign_summary(self, path: Path) -> ForeignSummary | None:
        """Return another program's checkpoint; None if the folder has one of ours, or none at all."""

    def require_fitting(self, summary: Any, recipe: Recipe) -> None:
        """Check that a checkpoint is of the recipe's model, as far as its files tell."""

    def load(self, engine: Saved, path: Path, *, finetune: bool) -> Loaded:
        """Load another program's checkpoint; all ranks call it together."""


def foreign_checkpoints() -> ForeignCheckpoints:
    """Return the tool."""
    return cast("ForeignCheckpoints", import_module("pretrain.tools.convert.trainer_calls"))
