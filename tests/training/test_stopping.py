"""Signals, the clock and the kill switch: every rank stops after the same iteration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from pretrain.checkpoint.writing import agreement
from pretrain.training.stopping import Stopping

TWO_RANKS = """
import os, signal, sys
import torch.distributed as dist
from pretrain.recipe import make_recipe
from pretrain.training.stopping import Stopping
from recipe.smallest import SMALLEST

rank = int(sys.argv[1])
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


def test_the_second_signal_of_a_kind_has_its_default_effect(make):
    with Stopping(make()) as stopping:
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        assert stopping.reason() == "SIGINT"


def test_an_ignored_signal_stays_ignored(make):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with Stopping(make()) as stopping:
            send(signal.SIGHUP)
            assert stopping.reason() == ""
    finally:
        signal.signal(signal.SIGHUP, before)


def test_the_handlers_are_restored(make):
    def handler(*_args): ...

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with Stopping(make()):
            assert signal.getsignal(signal.SIGTERM) is not handler
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_kill_switch_is_checked_at_every_iteration(make, tmp_path):
    with Stopping(make(f"train.kill_switch_path={tmp_path / 'stop'}")) as stopping:
        assert stopping.reason() == ""
        (tmp_path / "stop").touch()
        assert stopping.reason() == "the kill switch exists"


def test_a_time_limit_stops_the_run(make, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with Stopping(make("train.exit_duration_in_mins=2.5")) as stopping:
        now[0] += 149
        assert stopping.reason() == ""
        now[0] += 2
        assert stopping.reason() == "train.exit_duration_in_mins has passed"


def test_the_group_between_the_hosts_has_the_timeout_of_the_recipe_and_a_name(make, monkeypatch):
    made = []
    monkeypatch.setattr(agreement.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(agreement.dist, "new_group", lambda **options: made.append(options))
    Stopping(make("parallel.distributed_timeout_minutes=7"))
    assert made == [{"backend": "gloo", "group_desc": "agreement", "timeout": timedelta(minutes=7)}]


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
