"""The ranks of a hostfile: a fake of DeepSpeed's launcher starts them here. The real one is in test_launchers.py."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from launch.rank_processes import alive, pids_of_ranks, wait_for
from pretrain.launch import hosted_ranks
from pretrain.launch.board import Board, Task
from pretrain.launch.hosted_ranks import HostedRanks
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import PDSH, RANK, Hosted
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.processes.supervision import supervise

hosted = pytest.mark.parametrize("launcher", ["hosted_launcher.py"], indirect=True)


def ended(process):
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@pytest.fixture
def board(job, tmp_path):
    """The board of a run that is about to start."""
    return Board.pin(tmp_path / "run", Task(job=job("report"), launcher=PDSH, variables={}))


@hosted
def test_ranks_know_their_places_and_what_the_launcher_was_told(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("HOSTED_VARIABLES", json.dumps({"PRETRAIN_COMMAND": "pretrain x.yml", "RANK": "9"}))
    assert ended(launcher("report")) == (0, "")
    ranks = [json.loads((tmp_path / f"run/{rank}.json").read_text()) for rank in range(2)]
    assert [rank["world"] for rank in ranks] == [[0, 2, 0, 2, 0], [1, 2, 1, 2, 0]]
    assert {rank["run_dir"] for rank in ranks} == {str(tmp_path / "run")}
    assert {rank["variables"]["PRETRAIN_COMMAND"] for rank in ranks} == {"pretrain x.yml"}
    assert all(int(rank["environ"]["OMP_NUM_THREADS"]) >= 1 for rank in ranks)
    assert list((tmp_path / "run").glob(".*")) == []


@hosted
def test_the_files_beside_the_script_hide_no_module(launcher, tmp_path):
    assert ended(launcher("report")) == (0, "")
    assert str(RANK.parent) not in json.loads((tmp_path / "run/0.json").read_text())["path"]


@hosted
def test_a_known_error_of_one_rank_ends_all_and_is_shown_in_its_words(launcher):
    assert ended(launcher("rank_1_misses_data")) == (USER_ERROR, "rank 1: corpus.bin is truncated.\nBuild it again.\n")


@hosted
def test_an_error_that_all_ranks_have_is_shown_once(launcher):
    assert ended(launcher("all_miss_data")) == (USER_ERROR, "corpus.bin is truncated.\nBuild it again.\n")


@hosted
@pytest.mark.parametrize("train", ["rank_1_crashes", "rank_1_dies_in_a_collective"])
def test_a_crash_of_one_rank_shows_its_traceback_alone(launcher, train):
    code, errors = ended(launcher(train))
    assert code == CRASH
    assert errors.startswith("rank 1 failed:\nTraceback")
    assert errors.count("Traceback") == 1
    assert errors.endswith("ZeroDivisionError: a bug in rank 1\n")


@hosted
@pytest.mark.parametrize("train", ["rank_1_is_killed", "rank_1_leaves_without_a_word"])
def test_a_rank_that_dies_without_a_word_is_named(launcher, train):
    code, errors = ended(launcher(train))
    assert code == USER_ERROR
    assert errors.startswith("rank 1 ended without a word, most often because its host was out of memory")


@hosted
def test_the_ranks_of_other_hosts_do_not_wait_for_one_that_has_failed(launcher, monkeypatch):
    monkeypatch.setenv("FAKE_RUNNER_WAITS", "1")  # pdsh does: it knows one host's end from another's only at the end
    assert ended(launcher("rank_1_misses_data"))[0] == USER_ERROR  # the other one would sleep for ten minutes


@hosted
@pytest.mark.parametrize(
    ("sent", "received"),
    [(signal.SIGINT, "SIGINT"), (signal.SIGTERM, "SIGTERM"), (signal.SIGHUP, "SIGTERM")],
    ids=str,
)
def test_a_signal_reaches_rank_0_once_and_the_launcher_waits_for_all(launcher, tmp_path, sent, received):
    process = launcher("until_rank_0_is_told")
    pids_of_ranks(tmp_path / "run", 1)
    process.send_signal(sent)
    assert ended(process) == (0, "")
    assert json.loads((tmp_path / "run/0.signals").read_text()) == [received]


@hosted
def test_a_second_signal_kills_ranks_that_do_not_leave(launcher, tmp_path):
    process = launcher("deaf")
    pids = pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGINT)
    wait_for((tmp_path / "run/0.heard").exists, "the first signal to be passed on")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    process.send_signal(signal.SIGINT)
    assert ended(process) == (130, "")
    assert not any(alive(pid) for pid in pids)


@hosted
def test_ranks_that_do_not_handle_signals_yet_end_without_noise(launcher, tmp_path):
    process = launcher("importing")
    pids_of_ranks(tmp_path / "run")
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (143, "")


def test_a_signal_before_there_are_ranks_ends_the_launcher(board, monkeypatch):
    class Interrupted(HostedRanks):
        def running(self):
            if not self._asked_to_stop:
                signal.raise_signal(signal.SIGINT)  # `supervise` heeds signals when it asks this
            return super().running()

    monkeypatch.setattr(hosted_ranks, "_PATIENCE", 0.2)
    with Interrupted(["sleep", "600"], board, 2) as ranks, pytest.raises(SystemExit) as left:
        supervise(ranks)
    assert left.value.code == 130
    assert not ranks.running()


@pytest.mark.parametrize(("command", "code"), [("true", 0), ("false", 1)])
def test_a_launcher_that_ends_without_a_word_of_rank_0_has_failed(board, command, code):
    with HostedRanks([command], board, 2) as ranks:
        failure = supervise(ranks)
    assert str(failure).startswith(f"DeepSpeed's launcher ended with exit code {code} before the training was over.")


def test_a_launcher_that_fails_after_the_end_is_no_success(board):
    board.finish()
    with HostedRanks(["false"], board, 2) as ranks:
        assert "exit code 1 after the training was over" in str(supervise(ranks))
    with HostedRanks(["true"], board, 2) as ranks:
        assert supervise(ranks) is None


def test_ranks_that_all_lost_another_say_so(board):
    for rank in range(2):
        lost = Failure(rank=rank, when=rank, exit_code=CRASH, text="Connection closed by peer", lost_peer=True)
        lost.write(board.failure_file(rank))
    with HostedRanks(["false"], board, 2) as ranks:
        assert str(supervise(ranks)) == "rank 0 failed:\nConnection closed by peer"


def test_a_rank_that_cannot_leave_its_reason_prints_it(job, board, tmp_path):
    told = Task(job=job("all_miss_data"), launcher=PDSH, variables={})
    (board.folder / "task.json").write_text(json.dumps(dataclasses.asdict(told)))
    (board.folder / "failure-0.tmp").mkdir()  # in the way, as a full disk would be
    rank = subprocess.run([sys.executable, "-P", RANK, board.folder], capture_output=True, text=True, check=False)
    assert (rank.returncode, rank.stderr) == (USER_ERROR, "corpus.bin is truncated.\nBuild it again.\n")


def test_a_host_that_does_not_see_the_run_directory_says_so_once(tmp_path):
    command = [sys.executable, "-P", RANK, tmp_path / "absent"]
    told = [
        subprocess.run(command, env=os.environ | {"LOCAL_RANK": rank}, capture_output=True, text=True, check=False)
        for rank in ("0", "1")
    ]
    assert [rank.returncode for rank in told] == [1, 1]
    assert told[0].stderr == (
        f"{tmp_path}/absent cannot be read on this host (No such file or directory).\n"
        "All hosts of a hostfile share their files: pass a --run-dir that every one of them sees.\n"
    )
    assert told[1].stderr == ""


def test_the_launcher_does_not_see_what_is_true_of_one_host_alone(board, tmp_path, monkeypatch):
    """DeepSpeed would hand it on: HCCL_IF_IP begins with HCCL."""
    monkeypatch.setenv("HCCL_IF_IP", "node1")
    monkeypatch.setenv("HCCL_BUFFSIZE", "120")
    program = f"import os; open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(os.environ))"
    with HostedRanks([sys.executable, "-c", program], board, 2, own_variables=("HCCL_IF_IP",)) as ranks:
        supervise(ranks)
    seen = (tmp_path / "seen").read_text().split()
    assert "HCCL_BUFFSIZE" in seen
    assert "HCCL_IF_IP" not in seen


def test_variables_that_the_backend_names_go_to_all_ranks(job, tmp_path, monkeypatch, capsys):
    class Ended(HostedRanks):
        def __enter__(self):
            tasks.append(self._board.task())
            kept.append(self._kept)
            raise KeyboardInterrupt

    tasks, kept = [], []
    backend = SimpleNamespace(exported_variables=("TASK_QUEUE",), own_variables=("HCCL_IF_IP", "NOT_SET"))
    monkeypatch.setattr(hosted_ranks, "load_alone", lambda _: SimpleNamespace(backend=backend))
    monkeypatch.setattr(hosted_ranks, "HostedRanks", Ended)
    for name in ("TASK_QUEUE_ENABLE", "OTHER", "HCCL_IF_IP"):
        monkeypatch.setenv(name, "1")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    hosted = Hosted(hosts=read_hostfile(tmp_path / "hosts"), launcher=PDSH)
    with pytest.raises(KeyboardInterrupt):
        hosted_ranks.run_hosted(dataclasses.replace(job("report"), run_dir=str(tmp_path / "run")), hosted)
    assert tasks[0].variables["TASK_QUEUE_ENABLE"] == "1"
    assert not {"OTHER", "HCCL_IF_IP"} & tasks[0].variables.keys()
    assert kept == [{"HCCL_IF_IP", "NOT_SET"}]
    assert capsys.readouterr().err.splitlines() == [
        "--hostfile keeps HCCL_IF_IP from the ranks: true of one host alone.",
        "Set it on each host, or in .deepspeed_env where it is the same on all.",
    ]


def test_the_board_gives_the_task_back(job, tmp_path):
    task = Task(job=job("report", overrides=("a.b=1",)), launcher=PDSH, variables={"A": "b"})
    board = Board.pin(tmp_path / "new" / "run", task)
    assert Board(board.folder).task() == task
    board.remove()
    assert list((tmp_path / "new" / "run").iterdir()) == []


def test_the_last_order_counts_and_without_a_board_it_is_the_end(board):
    assert board.order() == ""
    board.give("SIGINT")
    board.give("SIGTERM\n")  # as a shell's echo writes it
    assert board.order() == "SIGTERM"
    board.remove()
    assert board.order() == "END"


def test_what_failed_ranks_leave_is_found_in_both_ways(board):
    failure = Failure(rank=1, when=1.0, exit_code=USER_ERROR, text="no data")
    assert board.failures() == board.last_words(2) == []
    failure.write(board.failure_file(1))
    assert board.failures() == board.last_words(2) == [failure]
