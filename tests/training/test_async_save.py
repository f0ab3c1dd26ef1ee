"""A run with `checkpoint.async_save`, as a user starts it on two ranks: it is killed, and continues where it was."""

from __future__ import annotations

import re
import signal

import pytest

from e2e.conftest import latest, pretrain, text_tokens, tiny  # noqa: F401  a fixture
from e2e.test_run import kill_after, numbers

pytestmark = [pytest.mark.ranks, pytest.mark.usefixtures("forked_python")]
SETTINGS = (
    *("checkpoint.async_save=true", "checkpoint.save_interval=1", "checkpoint.keep=2"),
    *("train.train_iters=12", "evaluation.interval=6", "parallel.tensor_model_parallel_size=2"),
)


@pytest.fixture(scope="module")
def whole_run(text_tokens, tmp_path_factory):  # noqa: F811
    """A run in one piece, with what it printed."""
    run_dir = tmp_path_factory.mktemp("runs") / "whole"
    return run_dir, pretrain(*tiny(text_tokens, run_dir, *SETTINGS))


@pytest.mark.full
def test_every_checkpoint_becomes_complete_in_order_and_the_last_ones_are_kept(whole_run):
    run_dir, printed = whole_run
    lines = [line for line in printed.splitlines() if line.startswith("checkpoint: ")]
    names = [re.match(r"checkpoint: (\S+iter_\d+)(, complete \d+\.\d s after its iteration)?$", line) for line in lines]
    folder = run_dir / "checkpoints"
    assert [found[1] for found in names] == [f"{folder}/iter_{iteration:07d}" for iteration in range(1, 13)]
    assert [bool(found[2]) for found in names] == [True] * 11 + [False]  # nothing is trained beside the last one
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == [
        "iter_0000011",
        "iter_0000012",
    ]
    assert latest(run_dir) == 12


@pytest.mark.full
def test_a_killed_run_resumes_bit_for_bit(whole_run, text_tokens, tmp_path):  # noqa: F811
    run_dir, _ = whole_run
    killed = tmp_path / "killed"
    kill_after(tiny(text_tokens, killed, *SETTINGS), killed, iteration=5, number=signal.SIGKILL)
    assert 1 <= latest(killed) < 12
    assert "resumed from" in pretrain(*tiny(text_tokens, killed, *SETTINGS), "--resume")
    assert numbers(killed) == numbers(run_dir)
