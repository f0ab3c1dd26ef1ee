"""Activations of a layer against Korthikanti et al. 2022 (arXiv:2205.05198), table 2, at the shape of their 22B model.

Rows deviate by a constant: the formulas count a byte for each element of the masks of both hidden dropouts, 2 sbh.
The cuda backend's kernel for residual + dropout(x + bias) makes its random numbers again instead of keeping a mask.
"""

from __future__ import annotations

import pytest

from tools.plan.published.activations import QUADRATIC
from tools.plan.published.own_process import answer

MASKS = 2
RANKS = 8


@pytest.mark.full
def test_every_row_of_the_table():
    """Rows: none, tensor, tensor + sequence; these two with selective recompute; full recompute."""
    rows = {
        "1": (34 + QUADRATIC, QUADRATIC, MASKS, 2),
        "8": (10 + 24 / RANKS + QUADRATIC / RANKS, QUADRATIC / RANKS, MASKS, 2),
        "8 sequence": (34 / RANKS + QUADRATIC / RANKS, QUADRATIC / RANKS, MASKS / RANKS, 2 / RANKS),
    }
    found = answer("tools.plan.published.activations")
    for name, (formula, scores, masks, full) in rows.items():
        kept, by_attention, entering = found[name]
        assert kept == pytest.approx(formula - masks, abs=0.01), name
        assert kept - by_attention == pytest.approx(formula - scores - masks, abs=0.01), name
        assert entering == full
