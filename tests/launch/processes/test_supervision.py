"""The reason that ranks have ended, as their supervisor sees it."""

from __future__ import annotations

import signal

from pretrain.launch.processes.failure import Failure
from pretrain.launch.processes.supervision import supervise


class Ended:
    """Ranks that have ended by a signal; the launcher gets signals while it looks."""

    def __init__(self, to_launcher=None):
        self.to_launcher = to_launcher

    def running(self):
        if self.to_launcher:
            number, self.to_launcher = self.to_launcher, None
            signal.raise_signal(number)
        return False

    def failures(self):
        return [Failure.from_exit_code(0, 1), Failure.from_exit_code(1, -signal.SIGTERM)][self.first :]

    first = 1

    def send(self, number):
        pass

    def kill(self):
        pass


def test_a_rank_that_another_process_ended_was_not_asked_to_end():
    failure = supervise(Ended())
    assert (failure.interrupted, failure.asked) == (True, False)


def test_a_failure_after_a_signal_to_the_launcher_is_one_of_a_run_that_was_asked_to_end():
    ranks = Ended(signal.SIGTERM)
    ranks.first = 0
    assert supervise(ranks).asked
