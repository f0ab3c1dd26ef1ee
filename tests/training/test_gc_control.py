"""Garbage is collected after the configured steps, and automatically again after the training."""

from __future__ import annotations

import gc
import weakref

import pytest

from pretrain.training.event import Due, GcControl


class Knot:
    """Garbage that only the collector finds."""

    def __init__(self):
        self.itself = self


@pytest.fixture(autouse=True)
def collector(real_collector):
    assert gc.isenabled()
    before = gc.get_freeze_count()
    yield
    assert gc.isenabled()
    assert gc.get_freeze_count() <= before


def test_garbage_is_collected_at_the_interval():
    with GcControl(3, is_manual=True) as garbage:
        assert not gc.isenabled()
        gone = weakref.ref(Knot())
        for iteration in (1, 2):
            garbage.after_iteration(Due(iteration=iteration))
            assert gone() is not None
        garbage.after_iteration(Due(iteration=3))
        assert gone() is None


def test_the_collector_works_again_after_an_error():
    with pytest.raises(RuntimeError, match="broken"), GcControl(1, is_manual=True):
        raise RuntimeError("broken")


@pytest.mark.full
def test_earlier_objects_are_frozen_until_the_end():
    knot = Knot()
    there = weakref.ref(knot)
    with GcControl(1, is_manual=True) as garbage:
        del knot
        garbage.collect()
        assert there() is not None
    gc.collect()
    assert there() is None


def test_the_collector_may_stay_automatic(monkeypatch):
    with GcControl(1, is_manual=False) as garbage:
        assert gc.isenabled()
        monkeypatch.setattr(gc, "collect", pytest.fail)
        garbage.after_iteration(Due(iteration=1))


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        with GcControl(1, is_manual=True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
