"""Rate and independence of dropout masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def assert_dropout_rate(probability: float, kept: Tensor) -> None:
    """Fail unless the share of dropped entries is within six standard deviations of the probability.

    The draws are independent, so a correct kernel fails once in 500 million runs.
    """
    count = kept.numel()
    rate = 1 - kept.double().mean().item()
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert abs(rate - probability) < 6 * deviation, f"{rate:.4f} of {count} entries dropped, expected {probability}"


def assert_independent(kept: Tensor) -> None:
    """Fail where two rows drop the same, of one head or of several: kept is [b, n, s, s], all seen or causal.

    Compared are the rows of the second half by the keys of the first, which a causal mask shows them all. With 48 of
    them, a quarter of which is dropped, two rows agree by chance once in 10^9.
    """
    half = kept.shape[-1] // 2
    rows = kept[:, :, -half:, :half].reshape(-1, half)
    different = torch.unique(rows, dim=0).shape[0]
    assert different == rows.shape[0], f"{rows.shape[0]} rows of weights have only {different} different dropout masks"
