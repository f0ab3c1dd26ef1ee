import json
import os
from pathlib import Path

import pytest

from launch.rank_processes import alive, pids_of_ranks
from pretrain.errors import DataError
from pretrain.launch.processes.failure import CRASH, USER_ERROR
from pretrain.launch.start import run_ranks
from pretrain.launch.world import LOCALHOST, free_port, node_worlds


def worlds(nproc):
    return node_worlds([nproc], 0, LOCALHOST, free_port())


def told(job, rank):
    return json.loads((Path(job.run_dir) / f"{rank}.json").read_text())


def test_one_rank_trains_in_this_process(job):
    one = job("report", overrides=("model.num_layers=3",), resume="run")
    assert run_ranks(one, worlds(1)) is None
    rank = told(one, 0)
    assert (rank["layers"], rank["backend"], rank["resume"]) == (3, "cpu", True)
    assert rank["world"] == [0, 1, 0, 1, 0]
    assert rank["environ"]["WORLD_SIZE"] == "1"
    assert rank["environ"]["MASTER_ADDR"] == "127.0.0.1"


def test_an_error_of_the_only_rank_is_raised_as_it_is(job):
    with pytest.raises(DataError, match="truncated"):
        run_ranks(job("all_miss_data"), worlds(1))


def test_several_ranks_know_their_places_and_share_the_cores(job, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    two = job("report", overrides=("model.num_layers=3",))
    assert run_ranks(two, worlds(2)) is None
    ranks = [told(two, rank) for rank in range(2)]
    assert [rank["world"] for rank in ranks] == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]
    assert [rank["environ"]["RANK"] for rank in ranks] == ["0", "1"]
    assert len({rank["environ"]["MASTER_PORT"] for rank in ranks}) == 1
    assert {rank["environ"]["OMP_NUM_THREADS"] for rank in ranks} == {"3"}
    assert {rank["layers"] for rank in ranks} == {3}


@pytest.mark.full
def test_a_number_of_threads_that_the_user_sets_stays(job, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    two = job("report")
    run_ranks(two, worlds(2))
    assert told(two, 1)["environ"]["OMP_NUM_THREADS"] == "5"


@pytest.mark.full
def test_a_file_in_the_working_directory_hides_no_module(job, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit('the wrong json')")
    monkeypatch.chdir(tmp_path)
    two = job("report")
    assert run_ranks(two, worlds(2)) is None


def test_a_user_error_of_one_rank_ends_all_and_is_shown_as_its_message(job):
    failure = run_ranks(job("rank_1_misses_data"), worlds(2))
    assert failure.exit_code == USER_ERROR
    assert str(failure) == "rank 1: corpus.bin is truncated.\nBuild it again."


@pytest.mark.full
def test_an_error_that_all_ranks_have_is_shown_once(job):
    assert str(run_ranks(job("all_miss_data"), worlds(2))) == "corpus.bin is truncated.\nBuild it again."


def test_a_crash_of_one_rank_shows_its_traceback_and_ends_the_others(job):
    crashing = job("rank_1_crashes")
    failure = run_ranks(crashing, worlds(2))
    assert failure.exit_code == CRASH
    assert str(failure).startswith("rank 1 failed:\nTraceback (most recent call last):")
    assert str(failure).endswith("ZeroDivisionError: a bug in rank 1")
    assert not any(alive(pid) for pid in pids_of_ranks(crashing.run_dir))


@pytest.mark.full
def test_ranks_that_are_stopped_while_they_report_a_failure_print_nothing(job, capfd):
    assert run_ranks(job("all_are_interrupted_while_reporting"), worlds(2)).interrupted
    assert capfd.readouterr().err == ""


def test_a_rank_that_leaves_with_exit_code_0_in_the_middle_is_the_failure_and_not_the_one_that_misses_it(job):
    failure = run_ranks(job("rank_1_leaves"), worlds(2))
    assert (failure.rank, failure.exit_code) == (1, CRASH)
    assert failure.text.startswith("It exited with code 0 before its work was done")


@pytest.mark.full
def test_ranks_that_all_leave_in_the_middle_are_no_success(job):
    failure = run_ranks(job("all_leave"), worlds(2))
    assert failure.exit_code == CRASH
    assert "sys.exit(0) was called before this rank had done its work" in failure.text
    assert "in all_leave" in failure.text


def test_so_is_the_only_rank_in_the_process_of_the_command(job):
    with pytest.raises(RuntimeError, match=r"sys\.exit\(0\) was called"):
        run_ranks(job("all_leave"), worlds(1))


@pytest.mark.full
@pytest.mark.parametrize(
    ("train", "words"),
    [("rank_1_is_killed", "killed by SIGKILL"), ("rank_1_exits_without_output", "ended with exit code 7")],
)
def test_a_rank_that_dies_without_output_is_named(job, train, words):
    failure = run_ranks(job(train), worlds(2))
    assert failure.exit_code == CRASH
    assert "rank 1 failed" in str(failure)
    assert words in str(failure)


@pytest.mark.full
def test_ranks_that_lose_a_peer_in_a_collective_print_nothing(launcher):
    process = launcher("rank_1_dies_in_a_collective")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == CRASH
    assert errors.startswith("rank 1 failed:\nTraceback")
    assert errors.count("Traceback") == 1
    assert errors.rstrip().endswith("ZeroDivisionError: a bug in rank 1")
