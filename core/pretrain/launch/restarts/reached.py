"""Progress of a run as its files show it, whatever state a failure has left them in."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.errors import PretrainError
from pretrain.report.metrics import FILE as METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.recipe import Recipe

_TAIL = 64 * 1024
"""Bytes at the end of metrics.jsonl that are read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reached:
    """Iterations up to which a run has come.

    Attributes:
        saved: that of the latest checkpoint; None without one.
        logged: the last one in metrics.jsonl; None without any.
    """

    saved: int | None
    logged: int | None


def reached_by(recipe: Recipe, run_dir: Path) -> Reached:
    """Return how far a run has come; what is missing or damaged counts as not there."""
    from pretrain.checkpoint.folder import CheckpointFolder  # noqa: PLC0415  only after a failure

    return Reached(saved=_saved(CheckpointFolder.of(recipe, run_dir)), logged=_logged(run_dir / METRICS))


def _saved(folder: CheckpointFolder) -> int | None:
    with suppress(PretrainError, OSError, ValueError):
        latest, there = folder.latest(), folder.iterations()
        # A single one need not be named: the run was killed just before that.
        return there[0] if latest is None and len(there) == 1 else latest
    return None


def _logged(path: Path) -> int | None:
    """Return the iteration of the last complete line."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("iteration"), int):
                    return int(record["iteration"])
    return None
