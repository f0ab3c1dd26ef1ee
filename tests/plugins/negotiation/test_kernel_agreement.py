"""All ranks run the same kernels, or none starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.plugins.negotiation.kernel_table import KernelTable, check_same_on_all_ranks

SCRIPT = Path(__file__).with_name("kernel_agreement_rank.py")
SAME = {"softmax": "fused", "norm": "fast"}
ROUNDS = {"equal": SAME, "other order": {"norm": "fast", "softmax": "fused"}, "other kernel": {**SAME, "norm": "slow"}}
ROUNDS["missing operation"] = {"softmax": "fused"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, forked_python):
    """Output of each rank for each round; rank 0 always has the same table."""
    store = tmp_path_factory.mktemp("agreement") / "store"
    tables = [[json.dumps(SAME)] * len(ROUNDS), [json.dumps(kernels) for kernels in ROUNDS.values()]]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(store), str(rank), *rounds],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, rounds in enumerate(tables)
    ]
    outputs = [[json.loads(line) for line in rank.communicate(timeout=300)[0].splitlines()] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return {name: (first, second) for name, first, second in zip(ROUNDS, *outputs, strict=True)}


@pytest.mark.ranks
@pytest.mark.parametrize("round_", ["equal", "other order"])
def test_equal_decisions_pass(outcomes, round_):
    assert outcomes[round_] == ("agreed", "agreed")


@pytest.mark.ranks
def test_another_kernel_names_rank_and_operation_on_every_rank(outcomes):
    first, second = outcomes["other kernel"]
    assert first == second
    assert "rank 1, norm: kernel 'slow'; rank 0: kernel 'fast'" in first
    assert "softmax" not in first


@pytest.mark.ranks
def test_an_operation_that_one_rank_lacks_is_named(outcomes):
    first, second = outcomes["missing operation"]
    assert first == second
    assert "rank 1, norm: not asked for; rank 0: kernel 'fast'" in first


def test_one_process_needs_no_comparison():
    check_same_on_all_ranks(KernelTable(backend="fake", provider="fake 1", rows=()))
