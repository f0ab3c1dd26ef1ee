"""All ranks run the same kernels, or none starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.plugins.agreement import check_same_on_all_ranks
from pretrain.plugins.table import KernelTable

SCRIPT = Path(__file__).with_name("agreement_rank.py")


def two_ranks(tmp_path, *arguments: tuple[str, str]) -> list[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "store"), str(rank), *given],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, given in enumerate(arguments)
    ]
    outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return outputs


@pytest.mark.ranks
def test_equal_tables_pass(tmp_path):
    assert two_ranks(tmp_path, ("fast", "1"), ("fast", "1")) == ["agreed\n", "agreed\n"]


@pytest.mark.ranks
def test_a_difference_names_rank_and_operation_on_every_rank(tmp_path):
    first, second = two_ranks(tmp_path, ("fast", "1"), ("slow", "1"))
    assert first == second
    assert "rank 1, norm: kernel 'slow'; rank 0: kernel 'fast'" in first
    assert "softmax" not in first


def test_one_process_has_nobody_to_disagree_with():
    check_same_on_all_ranks(KernelTable(backend="fake", provider="fake 1", rows=()))
