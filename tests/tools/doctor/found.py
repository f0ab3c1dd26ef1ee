"""Findings by the name of their check."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.doctor.finding import Finding


def only(findings: Iterable[Finding], check: str) -> Finding:
    """Return the one finding of a check."""
    (found,) = [finding for finding in findings if finding.check == check]
    return found
