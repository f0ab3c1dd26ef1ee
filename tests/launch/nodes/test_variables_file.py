"""The file that brings variables to the hosts, and the shell command that reads it there."""

import os
import stat
import subprocess

import pytest

from pretrain.errors import LaunchError
from pretrain.launch.nodes.variables_file import variables_file, with_variables


def call(path, *command):
    return subprocess.run(with_variables(path, list(command)), capture_output=True, text=True, check=False)


def test_a_command_gets_the_variables_as_they_are_and_others_cannot_read_them(tmp_path):
    value = 'a b\'s\n"$HOME" 100%n `date` \\'
    with variables_file(tmp_path, {"SECRET": value, "OTHER": "x", "no-name": "1"}) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.is_absolute()
        done = call(path, "printenv", "SECRET", "OTHER")
    assert done.stdout == f"{value}\nx\n"
    assert list(tmp_path.iterdir()) == []


def test_a_host_that_does_not_see_the_folder_says_so_and_executes_nothing(tmp_path):
    done = call(tmp_path / "absent", "echo", "executed")
    assert (done.returncode, done.stdout) == (2, "")
    host = os.uname().nodename
    assert done.stderr == f"{host} cannot read {tmp_path}/absent: all hosts must see the folder of the run.\n"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    with (
        pytest.raises(LaunchError, match="absent cannot be written: No such file"),
        variables_file(tmp_path / "absent", {}),
    ):
        pass
