"""The file that brings variables to the hosts, and the shell command that reads it there."""

import os
import stat
import subprocess
from types import SimpleNamespace

import pytest

from pretrain.errors import LaunchError
from pretrain.launch.nodes import pdsh as module
from pretrain.launch.nodes.pdsh import exported_variables, variables_file, with_variables


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


def test_a_host_that_does_not_see_the_folder_says_so_and_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_APPEARANCE_TIMEOUT", 0)
    done = call(tmp_path / "absent", "echo", "executed")
    assert (done.returncode, done.stdout) == (2, "")
    host = os.uname().nodename
    assert done.stderr == f"{host}: {tmp_path}/absent is not there: all hosts must see the folder of the run.\n"


def test_a_host_waits_for_a_file_that_its_file_system_does_not_show_yet(tmp_path):
    late = tmp_path / "late"
    node = subprocess.Popen(with_variables(late, ["printenv", "SECRET"]), stdout=subprocess.PIPE, text=True)
    (tmp_path / "new").write_text("export SECRET=1\n")
    (tmp_path / "new").rename(late)
    assert node.communicate(timeout=60)[0] == "1\n"


def test_a_file_of_another_user_is_not_executed(tmp_path):
    """Another user of the folder could have put it there; or the hostfile logs in as somebody else."""
    with variables_file(tmp_path, {"SECRET": "1"}) as path:
        command = with_variables(path, ["echo", "executed"])
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)
            words = "is not owned by"
        else:
            path.chmod(0)
            words = "cannot read"
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.endswith(": log in there as the user who starts the run.\n")


def test_where_the_file_system_gives_files_to_nobody_a_command_gets_the_variables(tmp_path, monkeypatch):
    with variables_file(tmp_path, {"SECRET": "1"}) as path:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        assert "-O" not in with_variables(path, [])[2]


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.shlex, "quote", full)  # is called while the file is written
    with pytest.raises(LaunchError, match=r"cannot be written: No space left on device\.\n.*--run-dir"):
        variables_file(tmp_path, {"SECRET": "1"}).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_removed_does_not_hide_how_the_run_ended(tmp_path):
    def ended():
        with variables_file(tmp_path, {}) as path:
            path.unlink()
            path.mkdir()
            return "the failure of rank 1"

    assert ended() == "the failure of rank 1"


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    with (
        pytest.raises(LaunchError, match="absent cannot be written: No such file"),
        variables_file(tmp_path / "absent", {}),
    ):
        pass


@pytest.fixture
def backend():
    return SimpleNamespace(exported_variables=("NCCL",), own_variables=("NCCL_OF_HOST",))


def test_variables_by_prefix_and_of_deepspeed_env_go_to_all_nodes(tmp_path, monkeypatch, backend):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.deepspeed_env").write_text("A=home\nB=home\n")
    (tmp_path / ".deepspeed_env").write_text("# networks\n\nB=here=there\nNCCL_OF_HOST=all\n")
    environ = {"NCCL_DEBUG": "INFO", "NCCL_OF_HOST": "one", "PYTHONPATH": "p", "UCX_TLS": "tcp", "OTHER": "1"}
    found = exported_variables(environ, backend)
    expected = {"NCCL_DEBUG": "INFO", "NCCL_OF_HOST": "all", "PYTHONPATH": "p", "UCX_TLS": "tcp"}
    assert expected | {"A": "home", "B": "here=there"} == {name: found[name] for name in (*expected, "A", "B")}
    assert "OTHER" not in found


@pytest.mark.parametrize("line", ["export", "export A=1", "2A=1", "Ä=1"])
def test_a_malformed_line_of_deepspeed_env_is_an_error(tmp_path, monkeypatch, backend, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "of_network").write_text(f"A=1\n{line}\n")
    with pytest.raises(LaunchError, match=rf"of_network, line 2: '{line}' is not NAME=VALUE\.\n"):
        exported_variables({"DS_ENV_FILE": "of_network"}, backend)
