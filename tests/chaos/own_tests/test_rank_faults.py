"""Faults within a rank come at their moment, on their rank, and once in a training."""

from __future__ import annotations

import dataclasses
import errno
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from chaos import rank_faults
from chaos.jumping_clock import move_clock
from chaos.planted import FAILURE, VARIABLE, Kind, Planted
from chaos.rank_faults import CALLS_OF_ITERATION, JUMP, MOMENT, act_of
from chaos.tiny_training import RECIPE
from pretrain.recipe import load_recipe

ONE = torch.ones(2)


@pytest.fixture
def planted(tmp_path):
    """A fault whose checkpoint is not there yet."""
    return Planted(kind=Kind.NONE, rank=1, signs=tmp_path, after=tmp_path / "iter_0000010")


@pytest.fixture
def true_time():
    yield time.time
    move_clock(0.0)


def at(planted, kind):
    """The act of a kind, called until the next call is its moment."""
    act = act_of(dataclasses.replace(planted, kind=kind))
    for _ in range(20):
        assert torch.equal(act(ONE), ONE)
    assert planted.fired() is None
    planted.after.mkdir()
    for _ in range(MOMENT - 1):
        assert torch.equal(act(ONE), ONE)
    assert planted.fired() is None
    return act


def test_the_calls_of_an_iteration_are_those_of_the_recipe():
    recipe = load_recipe(RECIPE, ("train.global_batch_size=8",))
    assert recipe.model.num_layers * recipe.train.global_batch_size // 8 == CALLS_OF_ITERATION


def test_a_fault_travels_in_the_environment(planted, monkeypatch):
    for name, value in planted.to_environment().items():
        monkeypatch.setenv(name, value)
    assert Planted.from_environment() == planted
    monkeypatch.delenv(VARIABLE)
    assert Planted.from_environment() is None


def test_its_ranks_are_one_or_all(planted):
    assert [planted.concerns(rank) for rank in range(3)] == [False, True, False]
    assert dataclasses.replace(planted, rank=None).concerns(0)


def test_nan_comes_once(planted):
    act = at(planted, Kind.NAN)
    assert act(ONE).isnan().all()
    assert planted.fired() == {}
    assert torch.equal(act(ONE), ONE)


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.NONE])
def test_none_comes_again_in_a_process_that_starts_later(planted, kind, monkeypatch):
    planted.after.mkdir()
    planted.fire()
    act = act_of(dataclasses.replace(planted, kind=kind))
    monkeypatch.setattr(rank_faults.time, "sleep", lambda _seconds: pytest.fail("it is slow"))
    for _ in range(3 * MOMENT):
        assert act(ONE) is ONE


def test_a_rank_waits_at_the_gate_until_it_is_opened(planted):
    act = at(planted, Kind.GATE)
    opener = threading.Timer(0.2, planted.open_gate)
    opener.start()
    act(ONE)
    assert planted.is_open()
    assert planted.fired() == {"workers": []}
    opener.join()


def test_the_gate_does_not_hold_a_rank_without_end(planted, monkeypatch):
    monkeypatch.setattr(rank_faults, "LONGEST_WAIT", 0.05)
    at(planted, Kind.GATE)(ONE)
    assert not planted.is_open()


def test_a_slow_rank_is_slow_from_its_first_call_on(planted, monkeypatch):
    slept = []
    monkeypatch.setattr(rank_faults.time, "sleep", slept.append)
    act = act_of(dataclasses.replace(planted, kind=Kind.SLOW))
    assert planted.fired() is None
    for _ in range(3):
        assert act(ONE) is ONE
    assert planted.fired() == {}
    assert slept == [rank_faults.SLOWER] * 3


def test_the_clock_jumps_before_a_kernel_fails_and_counts_if_something_reads_it(planted, true_time):
    act, of_clock = at(planted, Kind.CLOCK), dataclasses.replace(planted, kind=Kind.CLOCK)
    with pytest.raises(RuntimeError, match=FAILURE):
        act(ONE)
    assert planted.fired() == {}
    assert planted.is_met()
    assert not of_clock.is_met()
    assert round((time.time() - true_time()) / JUMP) == 1
    assert of_clock.is_met()


def test_a_disk_that_cannot_be_full_is_told(tmp_path, monkeypatch):
    assert rank_faults.without_full_disk(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
    assert "No such file" in rank_faults.without_full_disk(tmp_path / "absent")
    (tmp_path / "full").touch()
    monkeypatch.setattr(rank_faults, "_FULL", tmp_path / "full")
    assert "is no device" in rank_faults.without_full_disk(tmp_path)


def test_a_full_disk_is_that_of_checkpoints_after_the_moment(planted, tmp_path):
    """In a process of its own: what is audited cannot be taken back."""
    planted = dataclasses.replace(planted, kind=Kind.FULL_DISK, after=tmp_path / "checkpoints" / "iter_0000010")
    program = """
import json, os, sys
from pathlib import Path
from chaos.planted import Planted
from chaos.rank_faults import fill_disk
planted = Planted.from_environment()
fill_disk(planted)
folder = planted.after.parent / ".unfinished-0000015"
folder.mkdir(parents=True)
def write(path, mode="wb"):
    try:
        with open(path, mode) as stream:
            stream.write(bytes(100_000))
    except OSError as error:
        return error.errno
    return 0
early = [write(folder / "early"), planted.fired()]
planted.after.mkdir()
modes = [write(folder / mode, mode) for mode in ("wb", "ab", "w+b", "xb")]
before = [write(folder / "early", "r+b"), write(folder.parent / "other"), planted.fired()]
try:
    os.write(os.open(folder / "low", os.O_WRONLY | os.O_CREAT), b"x")
except OSError as error:
    print(json.dumps([early, modes, before, error.errno]))
"""
    environment = planted.to_environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    full = errno.ENOSPC
    assert json.loads(done.stdout) == [[0, None], [full] * 4, [full, 0, {}], full]
