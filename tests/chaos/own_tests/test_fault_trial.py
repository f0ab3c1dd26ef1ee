"""A training with a fault, from outside: what a killed node leaves behind is seen."""

from __future__ import annotations

import dataclasses
import os
import sys
import time

from chaos import disturbances
from chaos.bounded_command import BoundedCommand
from chaos.fault_trial import FaultTrial
from chaos.own_tests.test_bounded_command import FORGETS
from chaos.own_tests.test_judgement import BY_ITSELF

WAITS = "import time; time.sleep(0.5)"


class FakeTraining:
    """A training whose second node starts a process that outlives it, and whose fault is there at once."""

    nproc = 2

    def __init__(self, folder):
        self.temporary = folder
        self.given = 0

    def start(self, _run_dir, planted, output, **_):
        planted.fire()
        self.given += 1
        program = f"{FORGETS}\nsys.stdout.flush()\nimport time; time.sleep(60)" if self.given == 2 else WAITS
        words = [sys.executable, "-S", "-c", program]
        command = BoundedCommand(words, folder=self.temporary, environment=os.environ, output=output)
        for _ in range(200 if self.given == 2 else 0):
            if "done" in command.text():
                break
            time.sleep(0.01)
        (self.temporary / "pretrain-ranks-left").touch()
        return command


def test_what_a_killed_node_leaves_behind_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("chaos.bounded_command._FADING", 0.2)
    fault = dataclasses.replace(BY_ITSELF, nodes=2, disturb=disturbances.kill_launcher)
    training = FakeTraining(tmp_path)
    outcome = FaultTrial(training, tmp_path / "trial", fault, 20.0).run()
    assert (outcome.came, training.given) == (True, 3)
    assert [end.exit_code for end in (*outcome.ends, *outcome.others, *outcome.killed)] == [0, 0, -9]
    assert len(outcome.killed[0].left) == len(outcome.left) == 1
    assert "pretrain-ranks-left is left" in outcome.flaws[-1]
