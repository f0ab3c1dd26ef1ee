"""State by stage of ZeRO, as in figure 1 of Rajbhandari et al. 2020 (arXiv:1910.02054): 7.5 B parameters, 64 ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.plan.search.estimates import state_bytes
from tools.plan.search.test_choices import CHOICE, DEEPSPEED, RECIPE

PSI, RANKS = 7.5e9, 64


@pytest.mark.parametrize(
    ("stage", "formula", "gigabytes"),
    [
        (0, 16 * PSI, 120),
        (1, 4 * PSI + 12 * PSI / RANKS, 31.4),
        (2, 2 * PSI + 14 * PSI / RANKS, 16.6),
        (3, 16 * PSI / RANKS, 1.9),
    ],
)
def test_state_of_a_rank_is_that_of_the_paper(stage, formula, gigabytes):
    """The figure's numbers, rounded as there; the formulas are those of its section 5."""
    recipe = make_recipe(RECIPE, (*DEEPSPEED, "precision.dtype=bf16", "precision.grad_reduce_in_fp32=false"))
    state, _ = state_bytes(recipe, replace(CHOICE, zero=stage, data=RANKS), round(PSI))
    assert state == pytest.approx(formula, rel=1e-9)
    assert round(state / 1e9, 1) == gigabytes
