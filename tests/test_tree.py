"""Trees of small process groups: whatever the number of ranks, all of them agree, and none is left waiting."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.collectives import FAN_OUT, levels


@given(world_size=st.integers(1, 3000), fan_out=st.integers(2, 40))
def test_one_way_leads_from_each_rank_to_the_first_and_no_group_is_larger_than_the_fan_out(world_size, fan_out):
    groups = [ranks for level in levels(world_size, fan_out) for ranks in level]
    assert all(1 < len(ranks) <= fan_out for ranks in groups)
    assert sorted(rank for ranks in groups for rank in ranks[1:]) == list(range(1, world_size))
    reached = {0}
    for ranks in reversed(groups):
        assert ranks[0] in reached
        reached.update(ranks)


@pytest.mark.parametrize(("world_size", "most"), [(2, 1), (32, 31), (1024, 62), (16_384, 77), (100_000, 96)])
def test_the_connections_of_a_rank_are_few_in_any_world(world_size, most):
    assert sum(len(level[0]) - 1 for level in levels(world_size, FAN_OUT)) == most  # of rank 0, which is in the first


def ranks_of(tmp_path, world_size, fan_out, work):
    """Return what each rank found; a fresh process forks them, since torch's threads do not survive a fork."""
    program = (
        "import json, sys; from pathlib import Path; import tree_ranks; "
        f"print(json.dumps(tree_ranks.run({world_size}, {fan_out}, Path(sys.argv[1]), tree_ranks.{work})))"
    )
    path = ":".join(each for each in sys.path if each)
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, str(tmp_path)],
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(ran.stdout)


def require_agreement(found, world_size, fan_out):
    """Check what `tree_ranks.agreements` has found."""
    ranks = range(world_size)
    sums = [sum(2.0**rank if rank < 40 else 1.0 for rank in ranks), sum(ranks)]
    problem = "2 fails" if world_size > 2 else None
    for rank, of_rank in enumerate(found):
        assert of_rank == {
            "sums": sums,
            "least": 0,
            "gathered": [f"rank {each}" for each in ranks] if rank == 0 else None,
            "first": {"of": 0},
            "problem": problem,
            "none": None,
            "asked": 0,
            "refused": "no",
            "of all": list(ranks) if rank == 0 else None,
            "members": of_rank["members"],
        }
        assert of_rank["members"] <= fan_out


@pytest.mark.ranks
def test_all_ranks_agree(tmp_path):
    require_agreement(ranks_of(tmp_path, 8, 2, "agreements"), 8, 2)


@pytest.mark.ranks
@pytest.mark.full
@pytest.mark.parametrize("fan_out", [2, 3, 5, 32])
@pytest.mark.parametrize("world_size", [2, 3, 5, 9, 17, 33, 70])
def test_all_ranks_of_any_world_agree(tmp_path, world_size, fan_out):
    require_agreement(ranks_of(tmp_path, world_size, fan_out, "agreements"), world_size, fan_out)


@pytest.mark.ranks
@pytest.mark.parametrize("victim", [4, *(pytest.param(each, marks=pytest.mark.full) for each in (0, 3))])
def test_no_rank_waits_for_one_that_has_ended(tmp_path, victim):
    found = ranks_of(tmp_path, 8, 2, f"ends({victim})")
    assert found.pop(victim) is None
    assert all("Connection" in each or "closed" in each for each in found), found
