"""What the trainer calls to start from another program's checkpoint: see `pretrain.checkpoint.foreign_checkpoints`."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.checkpoint import torch_file
from pretrain.checkpoint.checksums import SMALL_FILES
from pretrain.checkpoint.folder import LATEST, folder_name
from pretrain.checkpoint.identity import structure
from pretrain.checkpoint.sharded_format import COMMON
from pretrain.collectives import on_rank0
from pretrain.errors import CheckpointError
from pretrain.tools.convert.registry import read_weights, recognized, summary_of
from pretrain.tools.convert.summary import LATEST_OF_DEEPSPEED, RELEASE
from pretrain.tools.convert.weight_names import some_of

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.contents import Loaded, Saved
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.model import ModelSection
    from pretrain.tools.convert.summary import CheckpointSummary


__all__ = ["foreign_summary", "load", "require_fitting", "summary_of"]


_HEADS = frozenset({"num_attention_heads", "num_query_groups"})
_NEEDED = (
    frozenset[str](),
    _HEADS,
    _HEADS | {"layernorm_epsilon"},
    _HEADS | {"activation", "parallel_residual", "position_embedding_type"},
)
"""Settings without which some files cannot be read: releases of 2019; GPT-NeoX's RMSNorm of before May 2025, and its
weights without their configuration."""

_OURS = "pretrain"
_LONGEST = 32
"""Longest iteration, in digits."""


def foreign_summary(path: Path) -> CheckpointSummary | None:
    """Return a summary of another program's checkpoint; None if the folder has one of ours, or none at all.

    Raises:
        CheckpointError: it is another program's and incomplete, or holds objects that could run code.
        DamageError: it is another program's and damaged.
    """
    if not path.is_dir() or _has_ours(path):
        return None
    summary = recognized(path)
    return None if summary is None or summary.format == _OURS else summary


def require_fitting(summary: CheckpointSummary, recipe: Recipe) -> None:
    """Check that a checkpoint is of the recipe's model, as far as its files tell.

    Raises:
        CheckpointError: settings differ.
    """
    ours, there = structure(recipe.model), {**summary.model, **_told(summary.path, recipe.model)}
    if recipe.model.position_embedding_type == "rope":
        ours.pop("max_position_embeddings")  # no weight depends on it
    if wrong := [name for name, value in ours.items() if name in there and there[name] != value]:
        pairs = some_of([f"model.{name} {there[name]} (recipe: {ours[name]})" for name in wrong])
        msg = (
            f"{summary.path} ({summary.format}) is of another model: {pairs}.\n"
            f"`pretrain checkpoint recipe {summary.path}` prints the section that fits.\n"
            "Change the recipe, or choose another checkpoint."
        )
        raise CheckpointError(msg)


def _told(path: Path, ours: ModelSection) -> dict[str, Any]:
    """Return the settings that the files tell, with as few of ours as they need to be read."""
    for keys in _NEEDED:
        with suppress(CheckpointError):
            model = read_weights(path, {name: getattr(ours, name) for name in keys}, SMALL_FILES).model
            return {name: getattr(model, name) for name in model.model_fields_set - keys}
    return {}


def _has_ours(path: Path) -> bool:
    """Say whether the latest checkpoint is of this program, or cannot be read: our own reader finds out why."""
    tracker = path / LATEST
    if not tracker.is_file():
        return False
    number = tracker.read_text(errors="replace").split("\n", 1)[0].strip()
    if not (number.isascii() and number.isdecimal() and len(number) <= _LONGEST):
        return number != RELEASE
    common = path / folder_name(int(number)) / COMMON
    if not common.parent.is_dir() and (path / LATEST_OF_DEEPSPEED).is_file():
        return False  # Megatron-DeepSpeed writes both trackers
    if not common.is_file():
        return not any(common.parent.glob("mp_rank_*"))
    try:
        content = torch_file.read(common)
    except CheckpointError:
        return True
    return not isinstance(content, dict) or "format" in content


def load(engine: Saved, path: Path, *, finetune: bool) -> Loaded:
    """Load another program's checkpoint; all ranks call it together. See `loading.load`.

    Raises:
        CheckpointError: the checkpoint is incomplete, or of another model; on all ranks.
        DamageError: a file is damaged.
    """
    from pretrain.tools.convert import loading  # noqa: PLC0415  megatron-core, which a launcher does without

    on_rank0(partial(_require_recipe, path, engine.recipe))  # complains once
    return loading.load(engine, path, finetune=finetune)


def _require_recipe(path: Path, recipe: Recipe) -> None:
    summary = foreign_summary(path)
    if summary is not None:
        require_fitting(summary, recipe)
