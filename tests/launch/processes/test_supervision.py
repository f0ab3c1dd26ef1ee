"""The reason that ranks have ended, as their supervisor sees it."""

from __future__ import annotations

import dataclasses
import signal

from pretrain.errors import DataError
from pretrain.launch.processes.failure import USER_ERROR, Failure
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

    def told(self):
        return []

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


class Hanging(Ended):
    """Ranks of which one has ended because it hangs, while another one writes a checkpoint after its error."""

    def failures(self):
        return [dataclasses.replace(Failure.from_exit_code(0, 1), when=2.0)]

    def told(self):
        told = Failure.of(DataError("sample 4711 is damaged"), 1, with_traceback=False)
        return [dataclasses.replace(told, when=1.0)]


def test_what_a_rank_that_still_runs_has_told_first_is_the_cause():
    failure = supervise(Hanging())
    assert (failure.text, failure.exit_code) == ("sample 4711 is damaged", USER_ERROR)


class Saving(Hanging):
    """Ranks of which none has ended, and one writes a checkpoint after its error."""

    def running(self):
        return True

    def failures(self):
        return []


def test_what_a_rank_here_has_told_explains_the_hang_of_another_node():
    elsewhere = dataclasses.replace(Failure.from_exit_code(2, 1), lost_peer=True)
    failure = supervise(Saving(), lambda: elsewhere)
    assert (failure.text, failure.exit_code) == ("sample 4711 is damaged", USER_ERROR)


class Nodes(Hanging):
    """Nodes of which one says the cause when it has been ended."""

    ended = False

    def kill(self):
        self.ended = True

    def failures(self):
        return [dataclasses.replace(Failure.from_exit_code(0, 1), lost_peer=True)]

    def told(self):
        return super().told() if self.ended else []


def test_a_cause_that_nodes_say_while_they_end_is_the_one_that_counts():
    assert supervise(Nodes()).text == "sample 4711 is damaged"
