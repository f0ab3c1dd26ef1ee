import json
import shlex
import subprocess
import sys

import pytest

from pretrain.report.environment_file import (
    COMMAND,
    Begin,
    describe_environment,
    git_commit,
    relevant_variables,
    write_environment,
)


class Device:
    name = "fake"

    def describe(self):
        return {"driver": "1.2"}


def describe():
    return describe_environment(
        backend=Device(),
        provider="pretrain-fake 0.1",
        devices=["Fake 1", "Fake 2"],
        kernels={"rows": []},
        layout={"world_size": 2},
        begin=Begin(0.0, 12),
    )


def test_it_says_what_the_run_ran_on():
    told = json.loads(json.dumps(describe()))
    assert told["backend"] == {"name": "fake", "provider": "pretrain-fake 0.1", "driver": "1.2"}
    assert told["devices"] == ["Fake 1", "Fake 2"]
    assert (told["layout"], told["kernels"]) == ({"world_size": 2}, {"rows": []})
    assert {"python", "pretrain", "torch", "megatron-core"} <= set(told["versions"])
    assert told["started_after"] == 12
    assert told["started"].startswith(("1970-01-01T", "1969-12-31T"))
    assert {"hostname", "platform", "directory", "git_commit", "variables"} <= set(told)


def test_the_command_is_what_the_user_typed(monkeypatch):
    monkeypatch.delenv(COMMAND, raising=False)
    monkeypatch.setattr(sys, "argv", ["pretrain", "my recipe.yml"])
    assert describe()["command"] == shlex.join(sys.argv)
    monkeypatch.setenv(COMMAND, "pretrain recipe.yml --nproc 2")
    assert describe()["command"] == "pretrain recipe.yml --nproc 2"


def test_only_variables_of_the_training_are_listed_and_no_secrets():
    environ = {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "0",
        "RANK": "0",
        "HOME": "/home/x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "PRETRAIN_API_TOKEN": "x",
        "RANKING": "x",
    }
    assert relevant_variables(environ) == {"CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "1", "RANK": "0"}


def test_the_file_is_written_whole(tmp_path):
    write_environment(tmp_path / "run", {"a": 1})
    write_environment(tmp_path / "run", {"a": 2})
    assert json.loads((tmp_path / "run/environment.json").read_text()) == {"a": 2}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["environment.json"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout

    return git


def test_outside_a_repository_there_is_no_commit(repository):
    assert git_commit() is None


def test_the_commit_is_marked_if_files_have_changed(repository, tmp_path):
    (tmp_path / "file").write_text("1")
    repository("init")
    repository("add", "file")
    repository("commit", "-m", "first")
    commit = repository("rev-parse", "HEAD").strip()
    assert git_commit() == commit
    (tmp_path / "file").write_text("2")
    assert git_commit() == f"{commit}-dirty"
