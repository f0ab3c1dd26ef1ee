"""Comparison of the validation loss with the recipe's target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.report.records import EvalRecord


def verdict(target_loss: float, reached: EvalRecord) -> str:
    """Return the line that says whether the validation loss at the end of a run is at most `target_loss`."""
    met = reached.lm_loss <= target_loss  # False for nan
    word = "reached" if met else "missed"
    return f"target {word}: validation loss {reached.lm_loss:.4f}, evaluation.target_loss {target_loss:g}"
