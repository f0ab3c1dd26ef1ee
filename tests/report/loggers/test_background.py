"""No logger stops a training: neither a slow one nor a broken one."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pretrain.errors import RunError
from pretrain.plugins.logger import LoggedEvent, Logger, Metrics, Point
from pretrain.report.loggers import background
from pretrain.report.loggers.background import Background, finish


def metrics(iteration):
    return Metrics(kind="train", iteration=iteration, consumed_samples=8 * iteration, curves={"lm loss": 1.0})


class Listed(Logger):
    """Keeps what it is told; waits for `gate` before each call, and raises in the iterations of `broken`."""

    def __init__(self, broken=(), starts=()):
        self.calls, self.threads = [], set()
        self.gate, self.broken, self.starts = threading.Event(), set(broken), list(starts)
        self.gate.set()

    def _take(self, *call):
        self.gate.wait(60)
        self.threads.add(threading.current_thread().name)
        self.calls.append(call)

    def start(self):
        self._take("start")
        if self.starts and (error := self.starts.pop(0)):
            raise error

    def metrics(self, metrics):
        self._take("metrics", metrics.iteration)
        if metrics.iteration in self.broken:
            raise OSError(f"no route to iteration {metrics.iteration}")

    def event(self, event):
        self._take("event", event.name)

    def artifact(self, file):
        self._take("artifact", file.name)

    def go_back(self, to):
        self._take("go_back", to.iteration)

    def finish(self, *, failed):
        self._take("finish", failed)


@pytest.fixture
def opened():
    """Open a logger in the background; return it and the lines that it shows."""

    def open_logger(logger, *, is_required=True):
        lines = []
        one = Background("acme", logger, lines.append)
        one.start(is_required=is_required)
        return one, lines

    return open_logger


def test_calls_come_in_their_order_in_one_other_thread(opened):
    one, lines = opened(listed := Listed())
    one.artifact(Path("run/recipe.yml"))
    one.metrics(metrics(10))
    one.event(LoggedEvent(name="rollback", iteration=5, text="back"))
    one.go_back(Point(iteration=5))
    one.metrics(metrics(6))
    finish([one], failed=False)
    finish([one], failed=True)  # once more: nothing
    assert listed.calls == [
        ("start",),
        ("artifact", "recipe.yml"),
        ("metrics", 10),
        ("event", "rollback"),
        ("go_back", 5),
        ("metrics", 6),
        ("finish", False),
    ]
    assert listed.threads == {"pretrain-logger-acme"}
    assert lines == []


def test_a_failure_is_told_once_and_later_records_are_tried(opened):
    one, lines = opened(listed := Listed(broken=[2, 3]))
    for iteration in range(1, 5):
        one.metrics(metrics(iteration))
    finish([one], failed=False)
    assert [call[1] for call in listed.calls if call[0] == "metrics"] == [1, 2, 3, 4]
    assert lines == [
        "warning: logger acme: no route to iteration 2. What it cannot take is lost. The training continues."
    ]


def test_a_slow_logger_loses_records_beyond_the_queue_but_no_step_waits(opened, monkeypatch):
    monkeypatch.setattr(background, "MOST_WAITING", 3)
    one, lines = opened(listed := Listed())
    listed.gate.clear()
    for iteration in range(1, 11):
        one.metrics(metrics(iteration))  # returns, though nothing is taken
    one.go_back(Point(iteration=4))
    listed.gate.set()
    finish([one], failed=False)
    taken = [call[1] for call in listed.calls if call[0] == "metrics"]
    assert taken in ([1, 2, 3], [1, 2, 3, 4])  # one may be in its hand
    assert ("go_back", 4) in listed.calls
    assert lines == [
        (
            "warning: logger acme: it is 3 records behind, and loses further ones until it has caught up. The training "
            "continues."
        )
    ]


def test_a_logger_that_cannot_start_ends_a_new_run(opened):
    with pytest.raises(RunError) as caught:
        opened(Listed(starts=[ValueError("401: who are you?")]))
    assert str(caught.value) == (
        "logging.loggers: acme cannot start: 401: who are you?\n"
        "Mend it, or train without it: leave it out of logging.loggers."
    )


def test_its_own_user_error_stays_as_it_is(opened):
    with pytest.raises(RunError, match=r"^two\nlines$"):
        opened(Listed(starts=[RunError("two\nlines")]))


def test_a_resumed_run_trains_without_it_and_tries_its_start_again(opened, monkeypatch):
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.0)
    one, lines = opened(listed := Listed(starts=[OSError("down"), OSError("still down")]), is_required=False)
    for iteration in (1, 2):
        one.metrics(metrics(iteration))
    finish([one], failed=False)
    assert [call for call in listed.calls if call[0] == "metrics"] == [("metrics", 2)]
    assert lines == ["warning: logger acme: down. What it cannot take is lost. The training continues."]


def test_a_start_that_fails_after_the_wait_for_it_is_told_and_tried_again(opened, monkeypatch):
    monkeypatch.setattr(background, "START_SECONDS", 0.01)
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.0)
    listed = Listed(starts=[OSError("down")])
    listed.gate.clear()
    one, lines = opened(listed)
    listed.gate.set()
    one.metrics(metrics(1))
    finish([one], failed=False)
    assert listed.calls == [("start",), ("start",), ("metrics", 1), ("finish", False)]
    assert lines == [
        "warning: logger acme: it has not started yet, and may still do so. The training continues.",
        "warning: logger acme: down. What it cannot take is lost. The training continues.",
    ]


def test_all_loggers_finish_at_the_same_time(opened):
    """One that waits for the other's end is told to end too."""
    first, second = Listed(), Listed()
    (one, _), (other, _) = opened(first), opened(second)
    first.finish = lambda **_: first.calls.append(second.gate.wait(30))
    second.finish = lambda **_: second.gate.set()
    second.gate.clear()
    finish([one, other], failed=False)
    assert first.calls[-1] is True


def test_a_start_that_is_not_due_is_not_tried(opened):
    one, _ = opened(listed := Listed(starts=[OSError("down")]), is_required=False)
    one.metrics(metrics(1))
    finish([one], failed=False)
    assert listed.calls == [("start",)]


@pytest.mark.parametrize("failed", [False, True])
def test_an_end_does_not_wait_for_ever(opened, monkeypatch, failed):
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    monkeypatch.setattr(background, "FAILED_SECONDS", 0.02)
    one, lines = opened(listed := Listed())
    listed.gate.clear()
    finish([one], failed=failed)
    assert lines == ["warning: logger acme: it does not finish; what it has not sent may be missing."]
    listed.gate.set()
