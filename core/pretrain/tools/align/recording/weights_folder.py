"""Folders of a recording that hold weights and moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = "weights"
"""Folder of the weights and moments before the first step and after each."""


def weights_folder(folder: Path, step: int) -> Path:
    """Return the folder of the state after a step; 0 is before the first."""
    return folder / WEIGHTS / f"step{step}"
