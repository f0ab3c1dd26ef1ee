"""Progress as a run's files show it, in any state in which a failure leaves them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.checkpoint.folder import LATEST, tracked
from pretrain.launch.restarts.reached import Reached, reached_by
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


def reached(run_dir):
    return reached_by(make_recipe(SMALLEST), run_dir)


def log(run_dir, *iterations):
    lines = (json.dumps({"kind": "train", "iteration": each}) + "\n" for each in iterations)
    (run_dir / "metrics.jsonl").write_text("".join(lines))


def checkpoint(run_dir, iteration, *, latest=True):
    (run_dir / f"checkpoints/iter_{iteration:07d}").mkdir(parents=True)
    if latest:
        (run_dir / "checkpoints" / LATEST).write_text(tracked(str(iteration)))


def test_the_latest_checkpoint_and_the_last_logged_iteration_count(tmp_path):
    checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 40)
    log(tmp_path, *range(1, 48))
    assert reached(tmp_path) == Reached(saved=40, logged=47)


def test_a_run_without_files_has_reached_nothing(tmp_path):
    assert reached(tmp_path) == reached(tmp_path / "absent") == Reached(saved=None, logged=None)


def test_a_single_checkpoint_counts_that_is_not_named_yet(tmp_path):
    checkpoint(tmp_path, 20, latest=False)
    assert reached(tmp_path).saved == 20
    checkpoint(tmp_path, 40, latest=False)
    assert reached(tmp_path).saved is None


@pytest.mark.parametrize("content", ["", "many", "7\n", tracked("20")[:-3], "\x00" * 80])
def test_a_damaged_name_of_the_latest_checkpoint_is_no_error(tmp_path, content):
    checkpoint(tmp_path, 20)
    (tmp_path / "checkpoints" / LATEST).write_text(content)
    assert reached(tmp_path).saved is None


@given(tail=st.binary(max_size=40).filter(lambda tail: b"iteration" not in tail))
def test_whatever_a_crash_leaves_at_the_end_the_last_complete_line_counts(tmp_path_factory, tail):
    run_dir = tmp_path_factory.mktemp("run")
    log(run_dir, 1, 2, 3)
    with (run_dir / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    assert reached(run_dir).logged == 3


def test_a_long_file_is_read_from_its_end(tmp_path):
    log(tmp_path, *range(1, 20_000))
    assert reached(tmp_path).logged == 19_999
