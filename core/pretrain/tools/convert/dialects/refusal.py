"""Refusal of models and layouts that a program, or ours, does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def require_none(program: str, settings: Mapping[str, object], layout: Mapping[str, object]) -> None:
    """Require that a program can have a model in a layout.

    Args:
        program: its name.
        settings: what it does not have -> whether the model has it.
        layout: what cannot be divided -> the rest that would remain.

    Raises:
        CheckpointError: something is true.
    """
    if wrong := [name for name, has in settings.items() if has]:
        msg = f"{program} has no {', '.join(wrong)}: the model cannot be converted to it.\nChoose another format."
        raise CheckpointError(msg)
    if uneven := [name for name, rest in layout.items() if rest]:
        msg = f"{program} cannot divide {', '.join(uneven)}.\nChoose sizes that divide them."
        raise CheckpointError(msg)


def not_ours(path: Path, what: str) -> CheckpointError:
    """Return the error for a checkpoint of a model that recipes cannot describe."""
    return CheckpointError(f"{path} is of a model with {what}.\nRecipes have no such setting: it cannot be converted.")
