"""The planned peak against what torch's CPU allocator hands out in a training, within 5 %."""

from __future__ import annotations

import json

import pytest

from pretrain.launch.world import free_port
from rank_programs import run_ranks
from tools.plan import measured

LARGE = [("2 x 4 x 1", 8, [0, 2, 6]), ("4 x 2 x 2", 16, [0, 8])]


def peaks(cases: list[str], world_size: int, rank: int, folder) -> dict[str, float]:
    """Return planned / measured of each case as one rank, in a world whose other ranks are not there."""
    world = {"RANK": str(rank), "WORLD_SIZE": str(world_size)}
    output = folder / f"{rank}.json"
    run_ranks("tools.plan.measured", output, json.dumps(cases), folder=folder, world_size=1, variables=lambda _: world)
    return shares(json.loads(output.read_text()))


def shares(found: dict[str, dict[str, int]]) -> dict[str, float]:
    return {case: each["planned"] / each["measured"] for case, each in found.items()}


def check(found: dict[str, float], tolerance: float = 0.05) -> None:
    """Compare all cases, so that a failure shows each."""
    wrong = {case: share for case, share in found.items() if abs(1 - share) > tolerance}
    assert not wrong, found


@pytest.mark.full
@pytest.mark.ranks
def test_a_small_case(tmp_path):
    """ZeRO-3, whose weights are gathered and split again."""
    check(peaks(list(measured.SMALL), 2, 1, tmp_path))


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize(("cases", "world_size"), [(measured.ONE, 1), (measured.TWO, 2)], ids=["one", "two"])
def test_recipes_layouts_and_engines(tmp_path, cases, world_size):
    for rank in range(world_size):
        check(peaks(list(cases), world_size, rank, tmp_path))


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize(("case", "world_size", "ranks"), LARGE, ids=[case for case, *_ in LARGE])
def test_layouts_of_more_ranks(tmp_path, case, world_size, ranks):
    for rank in ranks:
        check(peaks([case], world_size, rank, tmp_path))


@pytest.mark.full
@pytest.mark.ranks
def test_ranks_that_are_there(tmp_path):
    """Real collectives, but those of tensor parallelism, which gloo copies; within 10 %, for what its threads hold."""
    cases = [case for case in measured.TWO if case not in {"tensor", "sequence"}]
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    run_ranks(
        "tools.plan.measured",
        tmp_path / "{rank}.json",
        json.dumps(cases),
        "real",
        folder=tmp_path,
        world_size=2,
        variables=lambda rank: {**world, "RANK": str(rank)},
    )
    for rank in range(2):
        check(shares(json.loads((tmp_path / f"{rank}.json").read_text())), tolerance=0.1)
