"""A command ends within its limit, and nothing that it started outlives it unseen."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from chaos.bounded_command import BoundedCommand

FORGETS = "import subprocess, sys; subprocess.Popen(['sleep', '60'], start_new_session=True); print('done')"


@pytest.fixture
def command(tmp_path):
    def command(program):
        words = [sys.executable, "-S", "-c", program]
        return BoundedCommand(words, folder=tmp_path, environment=os.environ, output=tmp_path / "output")

    return command


def test_its_end_is_told(command):
    with command("import sys; print('so'); sys.exit('it ends')") as running:
        end = running.wait(30)
    assert (end.exit_code, end.output, end.left) == (1, "so\nit ends\n", ())
    assert not running.runs()


def test_one_that_does_not_end_is_killed_with_what_it_started(command):
    with command(f"{FORGETS}\nimport time; time.sleep(60)") as running:
        while "done" not in running.text():
            time.sleep(0.01)
        while len(running.members()) < 2:  # a process that is just being started has no environment yet
            time.sleep(0.01)
        end = running.wait(0.0)
    assert end.exit_code is None
    assert running.members() == []


def test_what_outlives_it_is_told_and_killed(command, monkeypatch):
    monkeypatch.setattr("chaos.bounded_command._FADING", 0.2)
    with command(FORGETS) as running:
        end = running.wait(30)
    assert end.exit_code == 0
    assert len(end.left) == 1
    assert running.members() == []


def test_one_that_cannot_be_seen_is_killed_as_a_group(command, monkeypatch):
    monkeypatch.setattr("chaos.bounded_command._has_mark", lambda *_: False)
    with command("import subprocess; subprocess.run(['sleep', '60'])") as running:
        assert not running.is_seen
        assert running.has(running.process.pid)
        assert not running.has(os.getpid()) or os.getsid(0) == os.getpid()
    assert running.process.returncode == -9


def test_one_that_can_be_seen_has_its_own_processes_alone(command):
    with command("import time; time.sleep(60)") as running:
        assert running.is_seen
        assert running.has(running.process.pid)
        assert not running.has(os.getpid())


def test_a_stopped_one_is_killed_too_where_the_program_is_interrupted(command):
    def interrupted(running):
        with running:
            os.kill(running.process.pid, signal.SIGSTOP)
            raise KeyboardInterrupt

    running = command("import time; time.sleep(60)")
    with pytest.raises(KeyboardInterrupt):
        interrupted(running)
    assert running.process.returncode == -9
