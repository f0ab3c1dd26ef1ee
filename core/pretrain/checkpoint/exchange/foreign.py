"""Checkpoints of other programs that a run starts from: recognized, and compared with its recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.checkpoint.dialects.registry import read_weights
from pretrain.checkpoint.folder import LATEST
from pretrain.checkpoint.formats import torch_file
from pretrain.checkpoint.formats.recognition import recognized
from pretrain.checkpoint.formats.sharded import COMMON
from pretrain.checkpoint.structure import structure
from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.formats.summary import Summary
    from pretrain.recipe import Recipe

_SHOWN = 3
_OURS = "pretrain"


def foreign_summary(path: Path) -> Summary | None:
    """Return a summary of another program's checkpoint; None if the folder has one of ours, or none at all.

    Raises:
        CheckpointError: it is another program's and incomplete, or holds objects that could run code.
        DamageError: it is another program's and damaged.
    """
    if not path.is_dir() or _has_ours(path):
        return None
    summary = recognized(path)
    return None if summary is None or summary.format == _OURS else summary


def require_fitting(summary: Summary, recipe: Recipe) -> None:
    """Check that a checkpoint is of the recipe's model, as far as its files tell.

    Raises:
        CheckpointError: settings differ.
    """
    ours, there = structure(recipe.model), {**summary.model, **_told(summary.path)}
    if recipe.model.position_embedding_type == "rope":
        ours.pop("max_position_embeddings")  # no weight depends on it
    if wrong := [name for name, value in ours.items() if name in there and there[name] != value]:
        pairs = ", ".join(f"model.{name} {there[name]} (recipe: {ours[name]})" for name in wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        msg = (
            f"{summary.path} ({summary.format}) is of another model: {pairs}{more}.\n"
            f"`pretrain checkpoint recipe {summary.path}` prints the section that fits.\n"
            "Change the recipe, or choose another checkpoint."
        )
        raise CheckpointError(msg)


def _told(path: Path) -> dict[str, Any]:
    """Return the settings that the files tell by themselves; none if they cannot be read without further ones."""
    try:
        model = read_weights(path, {}).model
    except CheckpointError:
        return {}
    return {name: getattr(model, name) for name in model.model_fields_set}


def _has_ours(path: Path) -> bool:
    """Say whether the latest checkpoint is of this program, or cannot be read: our own reader finds out why."""
    tracker = path / LATEST
    if not tracker.is_file():
        return False
    number = tracker.read_text(errors="replace").split("\n", 1)[0].strip()
    if not (number.isascii() and number.isdecimal()):
        return number != "release"
    common = path / f"iter_{int(number):07d}" / COMMON
    if not common.is_file():
        return not any((path / f"iter_{int(number):07d}").glob("mp_rank_*"))
    try:
        content = torch_file.read(common)
    except CheckpointError:
        return True
    return not isinstance(content, dict) or "format" in content
