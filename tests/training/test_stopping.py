"""Signals, the clock and the kill switch: every rank stops after the same iteration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from pretrain import collectives
from pretrain.exit_codes import STOP_SIGNALS, End, ExitCode
from pretrain.training.stopping import REASONS, Exchange, Stopping, end_of

TWO_RANKS = """
import os, signal, sys
import torch.distributed as dist
from pretrain.collectives import quiet_gloo
from pretrain.recipe import make_recipe
from pretrain.training.stopping import Stopping
from recipe.smallest import SMALLEST

rank = int(sys.argv[1])
with quiet_gloo():
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
with Stopping(make_recipe(SMALLEST)) as stopping:
    said = []
    for iteration in range(5):
        if iteration == 1 and sys.argv[3 + rank]:
            os.kill(os.getpid(), int(sys.argv[3 + rank]))
        said.append(stopping.reason())
        if said[-1]:
            break
    stopping.settle()
if not sys.argv[3 + rank]:
    os.kill(os.getpid(), int(sys.argv[4 - rank]))
print(said)
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def _world(alone):
    """Every test is one rank."""


@pytest.fixture(autouse=True)
def ended():
    """Signals that met this process's own handlers, which would end a process; they are restored after the test."""
    met = []
    before = {number: signal.signal(number, lambda number, _: met.append(number)) for number in STOP_SIGNALS}
    yield met
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def clock(monkeypatch):
    """Seconds since the epoch of the monotonic clock; a test moves them on."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def send(number):
    os.kill(os.getpid(), number)


def test_without_a_reason_the_training_continues(make):
    with Stopping(make()) as stopping:
        assert stopping.reason() == ""
        stopping.settle()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_remembered(make, number):
    with Stopping(make()) as stopping:
        send(number)
        assert stopping.reason() == number.name
        assert stopping.reason() == number.name


def test_a_person_is_told_what_becomes_of_an_interrupt(make, capfd):
    with Stopping(make()):
        send(signal.SIGINT)
    assert "SIGINT: asked to save and end after an iteration; a second Ctrl-C ends at once" in capfd.readouterr().err
    with Stopping(make("checkpoint.save=false")):
        send(signal.SIGINT)
    assert "SIGINT: asked to end after an iteration" in capfd.readouterr().err
    with Stopping(make(), answers=False):
        send(signal.SIGINT)
    assert "SIGINT" not in capfd.readouterr().err


def test_a_second_interrupt_ends_the_process_as_it_does_without_a_training(make, clock, ended, capfd):
    with Stopping(make()) as stopping:
        send(signal.SIGINT)
        clock[0] += 0.3
        send(signal.SIGINT)
        assert (stopping.reason(), ended) == ("SIGINT", [signal.SIGINT])
    assert "SIGINT: ended at once, without saving\n" in capfd.readouterr().err


def test_a_scheduler_that_repeats_its_signal_asks_once(make, ended):
    with Stopping(make()) as stopping:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            send(number)
        assert (stopping.reason(), ended) == ("SIGTERM", [])


def test_a_scheduler_that_repeats_its_signal_much_later_does_not_end_a_save(make, clock, ended):
    with Stopping(make()) as stopping:
        send(signal.SIGTERM)
        for _ in range(2):  # in the step, and while the loop saves
            clock[0] += 30
            send(signal.SIGTERM)
            send(signal.SIGHUP)
            assert (stopping.reason(), ended) == ("SIGTERM", [])
        send(signal.SIGINT)
        assert ended == [signal.SIGINT]


def test_a_process_that_was_stopped_by_a_signal_leaves_in_peace_but_for_another_interrupt(make, ended):
    with Stopping(make()) as stopping:
        send(signal.SIGTERM)
        stopping.reason()
    for number in STOP_SIGNALS:
        send(number)
    assert ended == [signal.SIGINT]


def test_a_process_whose_time_is_over_is_not_ended_by_torchrun_while_it_leaves(make, clock, ended):
    with Stopping(make("train.exit_duration_in_mins=1")) as stopping:
        clock[0] += 61
        stopping.reason()
    for number in STOP_SIGNALS:
        send(number)
    assert ended == [signal.SIGINT]


@pytest.mark.parametrize("reason", [*REASONS, "train.exit_interval 4"])
def test_the_exit_code_says_whether_there_is_more_to_do(reason):
    from_outside = reason.startswith(("SIG", "train.exit_duration"))
    end = end_of(reason, saves=True)
    assert end == End(ExitCode.SAVED if from_outside else 0, reason, by_signal=reason.startswith("SIG"))


def test_a_training_without_checkpoints_saves_nothing_and_says_so():
    assert [end_of(reason, saves=False).code for reason in ("SIGTERM", "SIGINT", REASONS[1])] == [143, 130, 0]


def test_an_ignored_signal_stays_ignored(make):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with Stopping(make()) as stopping:
        send(signal.SIGHUP)
        assert stopping.reason() == ""


def test_the_handlers_are_restored(make):
    before = signal.getsignal(signal.SIGTERM)
    with Stopping(make()):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_kill_switch_is_checked_at_every_iteration(make, tmp_path):
    with Stopping(make(f"train.kill_switch_path={tmp_path / 'stop'}")) as stopping:
        assert stopping.reason() == ""
        (tmp_path / "stop").touch()
        assert stopping.reason() == "the kill switch exists"


def test_a_time_limit_stops_the_run(make, clock):
    with Stopping(make("train.exit_duration_in_mins=2.5")) as stopping:
        clock[0] += 149
        assert stopping.reason() == ""
        clock[0] += 2
        assert stopping.reason() == "train.exit_duration_in_mins has passed"


def test_the_group_between_the_hosts_has_the_timeout_of_the_recipe_and_a_name(make, monkeypatch):
    made = []
    monkeypatch.setattr(collectives.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(collectives.dist, "new_group", lambda ranks, **options: made.append((ranks, options)))
    Stopping(make("parallel.distributed_timeout_minutes=7"))
    assert made == [([0, 1], {"backend": "gloo", "group_desc": "agreement", "timeout": timedelta(minutes=7)})]


@pytest.mark.ranks
@pytest.mark.usefixtures("forked_python")
def test_all_ranks_stop_after_the_same_iteration_for_the_same_reason(tmp_path):
    said = two_ranks(tmp_path, signal.SIGINT, signal.SIGTERM)
    assert said == ["['', '', 'SIGTERM']"] * 2  # the votes of one iteration are read in the next


@pytest.mark.ranks
@pytest.mark.usefixtures("forked_python")
def test_a_rank_that_has_stopped_with_another_is_not_ended_by_its_own_late_signal(tmp_path):
    assert two_ranks(tmp_path, signal.SIGINT, None) == ["['', '', 'SIGINT']"] * 2


def two_ranks(tmp_path, *signals):
    """Return the reasons that each of two ranks printed; one without a signal receives the other's after the end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    numbers = [str(int(number)) if number else "" for number in signals]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_RANKS, str(rank), str(tmp_path / "store"), *numbers],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=120)[0].strip() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return said


def test_a_sum_that_is_needed_now_waits_for_the_turn_that_has_begun(monkeypatch):
    """A tree's reductions that go on are in a thread of their own, whose order to this one differs between ranks."""
    did = []

    class Recorded:
        is_alone = False

        def begin(self, _numbers):
            did.append("begin")
            return self

        def wait(self):
            did.append("wait")

        def reduce(self, _numbers):
            did.append("reduce")

    monkeypatch.setattr(collectives.Tree, "between_hosts", lambda *_: Recorded())
    exchange = Exchange(timeout_minutes=1)
    exchange.turn()
    exchange.sum_now([1.0])
    exchange.settle()
    assert did == ["begin", "wait", "reduce"]
