"""Signals to `pretrain` while it imports: Ctrl-C ends it without a traceback, a request for a report ends nothing."""

import os
import signal
import subprocess
import sys

import pytest

from launch.rank_processes import wait_for
from pretrain.launch.processes import early_signals, rank_starter

SLOW = "import os, pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\n"
CONVERTING = "try:\n    time.sleep(30)\nexcept BaseException as error:\n    raise ImportError('broken') from error\n"
"""What C extensions do with a KeyboardInterrupt."""
UNTIL_ASKED = "while not os.path.exists(__file__ + '.end'):\n    time.sleep(0.01)\n"


def importing(folder, module):
    """Start `pretrain --help` with another click, and wait until that is imported."""
    (folder / "click.py").write_text(SLOW + module)
    process = subprocess.Popen(
        [sys.executable, "-m", "pretrain.cli.main", "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((folder / "begun").exists, "the import")
    return process


def test_ctrl_c_during_imports_ends_it_in_silence(tmp_path):
    process = importing(tmp_path, CONVERTING)
    process.send_signal(signal.SIGINT)
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 130)


def test_a_request_during_imports_ends_nothing(tmp_path):
    process = importing(tmp_path, UNTIL_ASKED + "os._exit(7)")
    process.send_signal(signal.SIGUSR2)
    (tmp_path / "click.py.end").touch()
    assert (process.communicate(timeout=60)[1], process.returncode) == ("", 7)


def test_ctrl_c_while_a_rank_is_started_ends_it_in_silence(capfd):
    process = rank_starter._started("rank", "{}", variables=os.environ)
    process.send_signal(signal.SIGINT)  # waits until the rank handles it
    assert process.wait(timeout=60) == 130
    assert capfd.readouterr().err == ""


def test_ctrl_c_elsewhere_is_the_usual_exception(monkeypatch):
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail(f"ended with {code}"))
    with pytest.raises(KeyboardInterrupt):
        early_signals._interrupt(signal.SIGINT, sys._getframe())
