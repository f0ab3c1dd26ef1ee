"""Cores of hosts against their ranks and data workers."""

from __future__ import annotations

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.ranks.own_steps import CoresStep
from recipe.smallest import SMALLEST


def judged(workers, *ranks):
    """Judge ranks, each a host and its cores."""
    recipe = make_recipe(SMALLEST, [f"data.num_workers={workers}"])
    (found,) = CoresStep(recipe).judge(
        {rank: {"host": host, "cores": cores} for rank, (host, cores) in enumerate(ranks)}
    )
    return found


@pytest.mark.parametrize(
    ("workers", "cores", "verdict"), [(1, [0, 1, 2, 3], Verdict.OK), (1, [0], Verdict.LOOK), (0, [0, 1], Verdict.OK)]
)
def test_two_ranks_and_their_workers_need_a_core_each(workers, cores, verdict):
    assert judged(workers, ("a", cores), ("a", cores)).verdict is verdict


def test_ranks_that_are_bound_to_cores_of_their_own_have_them_together():
    assert judged(1, ("a", [0, 1]), ("a", [2, 3])).verdict is Verdict.OK


def test_the_host_with_the_fewest_cores_for_a_rank_is_named():
    found = judged(2, ("a", [*range(6)]), ("a", [*range(6)]), ("b", [0]))
    assert found.text == "1 core on b; its ranks need 1 x (1 + 2 data workers) = 3"
    assert found.remedy.startswith("Allow 3 (")
