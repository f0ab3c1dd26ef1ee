"""The communication of a linear's input gradient is under way while its weight gradient is computed, on two ranks.

The order is that of the calls, which is the devices' too: NCCL's stream waits for what was issued before it, no more.
How much is hidden, only a GPU shows: not measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forked_python.client import Popen

REDUCED = ["input gradient", "all_reduce starts", "weight gradient", "all_reduce is waited for"]
SPLIT = [
    *("gather starts", "input gradient", "gather is waited for"),
    *("scatter starts", "weight gradient", "scatter is waited for"),
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Output of each of two ranks, for each way."""
    store = tmp_path_factory.mktemp("overlap") / "store"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ranks.overlap_rank", str(store)]
    started = [
        Popen([*command, str(rank)], cwd=Path(__file__).parents[1], env=environment, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=300)[0] for rank in started]
    assert [rank.returncode for rank in started] == [0, 0]
    return [json.loads(out.splitlines()[-1]) for out in said]


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("gradient", ["returned", "added", "apex"])
@pytest.mark.parametrize(("way", "order"), [("whole", REDUCED), ("split", SPLIT)])
def test_it_starts_before_the_weight_gradient_and_is_waited_for_after_it(ranks, rank, gradient, way, order):
    assert ranks[rank][f"{gradient} {way}"]["events"] == order


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("gradient", ["returned", "added", "apex"])
@pytest.mark.parametrize("way", ["whole", "split"])
def test_both_gradients_are_those_of_float64(ranks, gradient, way):
    assert max(error for rank in ranks for error in rank[f"{gradient} {way}"]["errors"]) < 1e-5
