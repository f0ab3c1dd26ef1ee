"""Which stop signal repeats the first one, and which asks for the end at once."""

from __future__ import annotations

import time
from signal import SIGHUP, SIGINT, SIGTERM

import pytest

from pretrain.exit_codes import StopRequest


@pytest.mark.parametrize(
    ("signals", "at_once"),
    [
        ([(SIGTERM, 0)], False),
        ([(SIGTERM, 0), (SIGTERM, 0.01)], False),
        ([(SIGTERM, 0), (SIGTERM, 1.9), (SIGHUP, 1.9)], False),
        ([(SIGTERM, 0), (SIGTERM, 2.1)], True),
        ([(SIGHUP, 0), (SIGTERM, 0.5)], False),
        ([(SIGINT, 0), (SIGINT, 0.3)], True),
        ([(SIGTERM, 0), (SIGINT, 0.3)], True),
        ([(SIGINT, 0), (SIGINT, 0.001)], False),
        ([(SIGINT, 0), (SIGINT, 0.001), (SIGINT, 0.5)], True),
        ([(SIGINT, 0), (SIGTERM, 1)], False),
    ],
)
def test_a_repetition_is_the_same_request_and_a_later_signal_another(signals, at_once, monkeypatch):
    request = StopRequest()
    for number, seconds in signals:
        monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: seconds)
        request.take(number)
    assert (request.number, request.at_once) == (signals[0][0], at_once)
