"""One rank process by itself."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from pretrain.errors import DataError
from pretrain.exit_codes import End, ExitCode
from pretrain.launch.processes import rank
from pretrain.launch.processes.failure import USER_ERROR, Failure
from pretrain.launch.processes.rank import FAILURE_FILE, PARENT, claim_report
from pretrain.launch.world import LOCALHOST, free_port, node_worlds
from report.conftest import room_for


@pytest.mark.full
def test_a_rank_that_cannot_write_its_failure_file_prints_the_failure(job, tmp_path):
    (tmp_path / "0.json").mkdir()  # prevents writing the file, as a full disk would
    world = node_worlds([1], 0, LOCALHOST, free_port())[0]
    own = {PARENT: str(os.getpid()), FAILURE_FILE: str(tmp_path / "0.json")}
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "pretrain.launch.processes.rank", job("all_miss_data").to_json()],
        env=os.environ | world.environment() | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (USER_ERROR, "corpus.bin is truncated.\nBuild it again.\n")


def test_of_the_ranks_of_a_launcher_one_may_print_the_report_of_all(monkeypatch, tmp_path):
    claims = []
    for number in range(3):
        monkeypatch.setenv(FAILURE_FILE, str(tmp_path / f"{number}.json"))
        claims.append(claim_report())
    monkeypatch.delenv(FAILURE_FILE)
    assert [*claims, claim_report()] == [True, False, False, True]


def test_what_a_rank_has_told_first_stays(tmp_path):
    """Its error, with which it waits for a checkpoint; a hang that follows is one of others."""
    file = tmp_path / "1.json"
    rank._tell_error(1, file, DataError("sample 4711 is damaged"))
    rank._tell(1, file, "The run hangs", True)
    assert Failure.read(file).text == "sample 4711 is damaged"


def test_an_error_counts_from_the_moment_in_which_it_was_told(tmp_path, monkeypatch):
    file, codes, told = tmp_path / "0.json", [], []
    monkeypatch.setattr(os, "_exit", codes.append)

    def run(_world):
        error = DataError("sample 4711 is damaged")
        rank._tell_error(0, file, error)
        told.append(Failure.read(file).when)  # then a checkpoint is written
        raise error

    rank.train(SimpleNamespace(run=run), node_worlds([1], 0, LOCALHOST, 0)[0], file)
    assert (codes, Failure.read(file).when) == ([USER_ERROR], told[0])


@pytest.mark.parametrize("code", [ExitCode.COMPLETE, ExitCode.SAVED])
def test_a_full_temporary_folder_makes_no_failure_of_work_that_is_done(tmp_path, code, capsys):
    file, world = tmp_path / "0.json", node_worlds([1], 0, LOCALHOST, 0)[0]
    file.touch()
    with room_for(file, 0):
        assert rank.train(SimpleNamespace(run=lambda _: End(code, "SIGTERM")), world, file) == code
    assert capsys.readouterr().err.startswith(f"warning: {tmp_path} cannot be written (")
    assert rank.read_end(file, code).code == code
    assert rank.read_end(file, -11) is None
