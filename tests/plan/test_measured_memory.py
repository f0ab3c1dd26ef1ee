"""The planned peak against what torch's CPU allocator hands out in a training, within 5 %."""

from __future__ import annotations

import json

import pytest

from plan import measured
from pretrain.launch.world import free_port
from rank_programs import run_ranks

pytestmark = pytest.mark.ranks


def peaks(name: str, world_size: int, cases: list[str], folder) -> dict[str, list[float]]:
    """Return the planned peak of each case in that of the training, by stage: of its ranks the one that held least."""
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world_size)}
    run_ranks(
        "plan.measured",
        name,
        folder,
        json.dumps(cases),
        folder=folder,
        world_size=world_size,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )
    found = [json.loads((folder / f"{name}.{rank}.json").read_text()) for rank in range(world_size)]
    return {case: shares([rank[case] for rank in found]) for case in cases}


def shares(ranks: list[dict[str, int]]) -> list[float]:
    """Return planned / measured of each stage."""
    stages = sorted({rank["stage"] for rank in ranks})
    return [max(rank["planned"] / rank["measured"] for rank in ranks if rank["stage"] == stage) for stage in stages]


@pytest.mark.parametrize(("name", "world_size"), [("one", 1), ("two", 2)])
def test_a_few_cases(tmp_path, name, world_size):
    """One of each: recomputation, the interleaved schedule, ZeRO's gathered weights."""
    check(peaks(name, world_size, measured.OF_COMMIT[name], tmp_path))


@pytest.mark.full
@pytest.mark.parametrize(("name", "world_size"), [("one", 1), ("two", 2)])
def test_all_cases(tmp_path, name, world_size):
    """Recipes, layouts and engines."""
    check(peaks(name, world_size, list(measured.CASES[name]), tmp_path))


def check(found: dict[str, list[float]]) -> None:
    """Compare all cases, so that a failure shows each."""
    wrong = {case: shares for case, shares in found.items() if max(abs(1 - share) for share in shares) > 0.05}
    assert not wrong, found
