"""Judgement of failures: which of them are followed by a restart, when, and what the user reads."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.checkpoint.folder import LATEST, tracked
from pretrain.errors import BackendError, DeviceError, NotFiniteError
from pretrain.exit_codes import End, ExitCode
from pretrain.launch.nodes.reports import silent_node
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import Decision, RestartPolicy, Restarts, RunProgress, with_remark
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

KILLED = Failure(rank=1, when=1.0, exit_code=CRASH, text="It was killed by SIGKILL.\nThe usual cause is memory.")
BUG = Failure(rank=0, when=1.0, exit_code=CRASH, text="Traceback ...\n  port 4711\nValueError: port 4711 at 0x7f12")


class Progress:
    """What the run's files show; a test moves it on."""

    def __init__(self):
        self.saved = self.logged = None
        self.is_copied = False

    def look(self):
        return RunProgress(saved=self.saved, logged=self.logged, is_copied=self.is_copied)


def judged(limit, *steps, is_copied=False):
    """Judge failures, each given as (failure, saved, logged); return the verdicts."""
    progress, verdicts = Progress(), []
    progress.is_copied = is_copied
    restarts = Restarts(RestartPolicy(limit=limit), progress.look)
    for failure, progress.saved, progress.logged in steps:
        verdicts.append(restarts.judge(failure))
    return verdicts


def test_a_crash_is_followed_by_a_restart_from_the_last_checkpoint_and_the_line_says_so():
    assert judged(3, (KILLED, 40, 47)) == [
        Decision(wait=1.0, text="restart 1 of 3 in 1 s, from the checkpoint of iteration 40")
    ]
    assert judged(3, (KILLED, None, None))[0].text == "restart 1 of 3 in 1 s, from the beginning"


def test_with_copies_on_the_nodes_logged_iterations_are_kept_and_the_line_says_so():
    verdicts = judged(3, (KILLED, 40, 47), (KILLED, 40, 53), is_copied=True)
    assert [verdict.wait for verdict in verdicts] == [1, 1]
    assert verdicts[1].text == "restart 2 of 3 in 1 s, from the checkpoint of iteration 40 or later copies on the nodes"


def test_a_user_error_and_a_signal_that_asks_for_the_end_are_no_reason():
    mistake = Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="no data")
    assert judged(3, (mistake, 40, 47)) == [Decision()]
    assert judged(3, (dataclasses.replace(KILLED, asked=True), 40, 47)) == [Decision()]


def test_a_signal_to_a_rank_alone_is_a_reason_also_if_all_have_saved_and_a_time_limit_is_none():
    signalled = Failure.of_stop(End(ExitCode.SAVED, "SIGTERM", by_signal=True))
    assert judged(3, (signalled, 40, 40))[0].wait == 1
    assert judged(3, (dataclasses.replace(signalled, asked=True), 40, 40)) == [Decision()]
    time_limit = Failure.of_stop(End(ExitCode.SAVED, "train.exit_duration_in_mins has passed"))
    assert judged(3, (time_limit, 40, 40)) == [Decision()]


def test_hosts_that_answered_once_may_come_back_and_others_are_a_user_error():
    absent = Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="no word of host-b", absent=("host-b",))
    assert judged(3, (absent, None, None)) == [Decision()]
    assert judged(3, (KILLED, 40, 47), (absent, 40, 47))[1].wait == 2


def test_a_restart_that_cannot_begin_is_tried_again_until_none_is_left():
    in_use = Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="runs/first is in use", passing=True)
    assert judged(9, (in_use, None, None)) == [Decision()]
    verdicts = judged(4, (KILLED, 40, 47), *[(in_use, 40, 47)] * 4)
    assert [verdict.wait for verdict in verdicts] == [1, 2, 4, 8, None]
    assert verdicts[-1].text.startswith("All restarts are used up (--max-restarts 4).")
    last = judged(9, (KILLED, 40, 47), (in_use, 40, 47), (KILLED, 40, 47))[-1]
    assert last.text.startswith("No restart: the run failed twice")


def test_a_device_that_is_missing_at_a_restart_is_tried_again():
    missing = Failure.of(DeviceError("rank 3 of this node has no GPU"), 3, with_traceback=False)
    verdicts = judged(3, (KILLED, 40, 47), *[(missing, 40, 47)] * 3)
    assert [verdict.wait is None for verdict in verdicts] == [False, False, False, True]


def test_values_that_are_not_finite_are_tried_once_more_and_end_the_run_at_the_same_iteration():
    def failure(rank, iteration):
        error = NotFiniteError(f"not finite from iteration {iteration} on, first on rank 1 (node7, cuda:3).")
        return Failure.of(error, rank, with_traceback=False)

    again, end = judged(3, (failure(0, 47), 40, 46), (failure(1, 47), 40, 46))
    assert again.text == "restart 1 of 3 in 1 s, from the checkpoint of iteration 40"
    assert end.text.startswith("No restart: the run failed twice in the same way after iteration 46")
    assert "\nfirst: not finite from iteration 47 on, first on rank 1 (node7, cuda:3).\n" in end.text
    assert [each.wait for each in judged(3, (failure(0, 47), 40, 46), (failure(0, 52), 40, 51))] == [1, 2]
    assert judged(0, (failure(0, 47), 40, 46)) == [Decision()]


def test_a_hook_that_raises_at_a_restart_ends_the_run():
    broken = Failure.of(BackendError("the plugin 'wild' raised in pretrain_norm"), 3, with_traceback=False)
    assert judged(3, (KILLED, 40, 47), (broken, 40, 47))[1] == Decision()


def test_a_report_of_all_ranks_is_the_same_failure_from_whichever_rank_it_comes():
    hang = Failure(rank=0, when=1.0, exit_code=CRASH, text="rank 3 did not come", of_launcher=True)
    other = dataclasses.replace(hang, rank=1)
    assert judged(9, (hang, 40, 47), (other, 40, 47))[1].wait is None


def test_any_number_of_restarts_without_a_checkpoint_has_a_wait():
    assert judged(2000, *[(KILLED, 10, logged) for logged in range(1500)])[-1].wait == 60


def test_the_wait_doubles_without_a_new_checkpoint_and_begins_again_with_one():
    steps = [(KILLED, 10, logged) for logged in range(9)] + [(KILLED, 20, 30)]
    assert [verdict.wait for verdict in judged(99, *steps)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1]


@given(limit=st.integers(0, 20), failures=st.integers(0, 40))
def test_there_are_never_more_restarts_than_allowed(limit, failures):
    verdicts = judged(limit, *((KILLED, step, step) for step in range(failures)))
    assert sum(verdict.wait is not None for verdict in verdicts) == min(limit, failures)


def test_the_end_says_that_no_restart_is_left_and_how_to_go_on():
    verdict = judged(1, (KILLED, 10, 12), (KILLED, 20, 25))[1]
    assert str(with_remark(KILLED, verdict)) == (
        "rank 1 failed:\nIt was killed by SIGKILL.\nThe usual cause is memory.\n"
        "All restarts are used up (--max-restarts 1). --resume continues from the checkpoint of iteration 20."
    )
    assert judged(0, (KILLED, 10, 12)) == [Decision()]


def test_the_same_failure_without_progress_ends_the_run_and_both_are_named():
    again = dataclasses.replace(BUG, text="Traceback ...\n  port 9999\nValueError: port 9999 at 0x7f99")
    first, second = judged(9, (BUG, 40, 47), (again, 40, 47))
    assert first.wait == 1
    assert second == Decision(
        text="No restart: the run failed twice in the same way after iteration 47, without progress in between.\n"
        "first: rank 0: ValueError: port 4711 at 0x7f12\n"
        "then:  rank 0: ValueError: port 9999 at 0x7f99\n"
        "Remove the cause. --resume continues from the checkpoint of iteration 40."
    )
    assert "the same way before the first iteration" in judged(9, (KILLED, None, None), (KILLED, None, None))[1].text


def test_another_failure_or_rank_or_a_later_iteration_is_a_reason_again():
    other_rank = dataclasses.replace(KILLED, rank=3)
    for second in ((BUG, 40, 47), (other_rank, 40, 47), (KILLED, 40, 48), (KILLED, 60, 47)):
        assert judged(9, (KILLED, 40, 47), second)[1].wait is not None


def test_two_nodes_that_are_lost_are_two_failures_and_one_that_is_lost_twice_is_one():
    node1, node2 = (silent_node(place, f"node{place}", 61.0) for place in (1, 2))
    assert judged(9, (node1, 40, 47), (node2, 40, 47))[1].wait == 2
    assert judged(9, (node1, 40, 47), (silent_node(1, "node1", 64.0), 40, 47))[1].wait is None


def test_a_failure_that_may_pass_is_no_user_error_when_no_restart_is_left():
    absent = Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="no GPU", passing=True)
    verdict = judged(1, (KILLED, 40, 47), (absent, 40, 47))[1]
    assert with_remark(absent, verdict).exit_code == CRASH
    assert with_remark(absent, judged(1, (absent, None, None))[0]).exit_code == USER_ERROR


def test_the_summary_counts_restarts(capsys):
    restarts = Restarts(RestartPolicy(limit=2), Progress().look)
    restarts.show_end()
    for failure in (KILLED, BUG):
        restarts.judge(failure)
        restarts.show_end()
    assert capsys.readouterr().err == "ended after 1 restart\nended after 2 restarts\n"


def reached(run_dir):
    return RunProgress.of_run(make_recipe(SMALLEST), run_dir)


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
    assert reached(tmp_path) == RunProgress(saved=40, logged=47)


def test_a_run_without_files_has_reached_nothing(tmp_path):
    assert reached(tmp_path) == reached(tmp_path / "absent") == RunProgress(saved=None, logged=None)


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
