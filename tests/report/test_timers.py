import pytest

from pretrain.report.timers import PhaseTimers, across_ranks, timers_line


class Clock:
    """A clock that advances only on request."""

    now = 0.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


def test_the_time_of_a_phase_adds_up_until_it_is_taken():
    clock = Clock()
    timers = PhaseTimers(clock=clock)
    for seconds in (0.25, 0.5):
        with timers.phase("forward-backward"):
            clock.pass_by(seconds)
        clock.pass_by(10)
    assert timers.take()["forward-backward"] == 0.75
    assert timers.take()["forward-backward"] == 0


def test_a_phase_that_fails_is_measured_too():
    clock = Clock()
    timers = PhaseTimers(clock=clock)

    def fail():
        with timers.phase("save"):
            clock.pass_by(2)
            raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert timers.take()["save"] == 2


def test_phases_may_be_nested():
    clock = Clock()
    timers = PhaseTimers(clock=clock)
    with timers.phase("interval"):
        clock.pass_by(1)
        with timers.phase("data"):
            clock.pass_by(2)
    taken = timers.take()
    assert (taken["interval"], taken["data"]) == (3, 2)


def test_an_unknown_phase_is_a_mistake():
    with pytest.raises(KeyError), PhaseTimers().phase("lunch"):
        pass


def test_the_device_is_synchronized_only_on_request():
    waits = []
    for timers in (PhaseTimers(), PhaseTimers(synchronize=lambda: waits.append(1))):
        with timers.phase("optimizer"):
            pass
    assert len(waits) == 2


def test_one_rank_is_its_own_spread_and_steps_count_per_iteration():
    seconds = PhaseTimers().take() | {"optimizer": 0.02, "save": 3.0}
    assert across_ranks(seconds, 10) == {"optimizer": (2.0, 2.0), "save": (3000.0, 3000.0)}


def test_the_spread_over_ranks_takes_one_collective(monkeypatch):
    """Two ranks, of which the other one is played: it took twice as long for data and saved nothing."""
    import torch
    from torch import distributed

    calls = []

    def all_reduce(tensor, op):
        calls.append(op)
        other = torch.zeros_like(tensor)
        half = len(tensor) // 2
        other[0], other[half] = 40.0, -40.0
        torch.maximum(tensor, other, out=tensor)

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    spreads = across_ranks(PhaseTimers().take() | {"data": 0.2, "save": 1.0}, 10)
    assert calls == [distributed.ReduceOp.MAX]
    assert spreads == {"data": (20.0, 40.0), "save": (0.0, 1000.0)}


def test_the_line_for_the_log():
    assert timers_line({"data": (0.5, 1.25), "forward-backward": (12.3, 12.9)}) == (
        "(min, max) time across ranks (ms): data: (0.5, 1.2) | forward-backward: (12.3, 12.9)"
    )
