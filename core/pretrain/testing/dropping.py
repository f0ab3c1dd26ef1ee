"""Is as much dropped as was asked for?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def assert_dropout_rate(probability: float, kept: Tensor) -> None:
    """Fail unless the share of entries that are not kept is within six standard deviations of the probability.

    The draws are independent, so a right kernel fails once in 500 million runs.
    """
    count = kept.numel()
    rate = 1 - kept.double().mean().item()
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert abs(rate - probability) < 6 * deviation, f"{rate:.4f} of {count} entries dropped, expected {probability}"
