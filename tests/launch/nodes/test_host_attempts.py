"""The launcher of a hostfile that starts its nodes again; every host is this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pretrain.errors import LaunchError, RecipeError
from pretrain.launch import restarts
from pretrain.launch.job import Job
from pretrain.launch.nodes.hosts import run_host_attempts
from pretrain.launch.nodes.nodes import Host, Hosts
from pretrain.launch.nodes.pdsh import UnreachedError
from pretrain.launch.processes.failure import CRASH, USER_ERROR, Failure
from pretrain.launch.restarts import RestartPolicy
from pretrain.launch.run_lock import held
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

CRASHED = Failure(rank=1, when=1.0, exit_code=CRASH, text="a bug")
OTHER = Failure(rank=2, when=1.0, exit_code=CRASH, text="another bug")


@pytest.mark.full
@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("launcher", ["hosts"], indirect=True)
def test_the_nodes_are_started_again_after_a_death(launcher, tmp_path, monkeypatch):
    monkeypatch.setenv("RESTARTS", "3")
    monkeypatch.delenv("MASTER_PORT")
    process = launcher("dying_once", 11)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0
    assert [line for line in errors.splitlines() if "restart" in line] == [
        "restart 1 of 3 in 1 s, from the beginning",
        "ended after 1 restart",
    ]
    for rank in range(2):
        lines = (tmp_path / f"run/{rank}.attempts").read_text().splitlines()
        assert [json.loads(line)[:2] for line in lines] == [[False, 2], [False, 2]]


@pytest.fixture
def attempts(monkeypatch, tmp_path):
    """Runs a job on hosts with one rank each that end as told; returns the result, and the hosts of each attempt."""
    monkeypatch.setattr(restarts, "_FIRST_WAIT", 0.0)
    monkeypatch.chdir(tmp_path)

    def attempt(ends, *, names="abc", fewest=None, batch=12, run_dir="run", use=lambda run_dir: None):
        seen, left = [], iter(ends)

        def run_on_hosts(hosts, job, attempt, patience=None, *, may_restart):
            assert may_restart
            seen.append(("".join(host.name for host in hosts.members), job.resume, attempt, patience))
            use(Path(job.run_dir))
            end = next(left)
            if isinstance(end, LaunchError):
                raise end
            return end

        hosts = Hosts(file=tmp_path / "hosts", members=tuple(Host(name, 1) for name in names))
        recipe = make_recipe(SMALLEST, [f"train.global_batch_size={batch}"])
        job = Job(recipe="tiny.yml", backend="cpu", run_dir=run_dir)
        policy = RestartPolicy(limit=3, fewest_nodes=fewest)
        monkeypatch.setattr("pretrain.launch.nodes.hosts.run_on_hosts", run_on_hosts)
        return run_host_attempts(hosts, job, recipe, policy), seen

    return attempt


def absent(*names):
    return Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="no word", absent=names)


def test_a_restart_resumes_what_is_there_on_all_hosts(attempts):
    assert attempts([CRASHED, None]) == (None, [("abc", "no", 0, None), ("abc", "auto", 1, None)])


def test_hosts_without_a_word_are_left_out_and_tried_again_at_the_next_restart(attempts, capsys):
    failure, seen = attempts([CRASHED, absent("b"), OTHER, None], fewest=1)
    assert failure is None
    assert [(names, start) for names, _, start, _ in seen] == [("abc", 0), ("abc", 1), ("ac", 2), ("abc", 3)]
    assert "restart without b: a 1, c 1\n" in capsys.readouterr().err


def test_hosts_that_ssh_does_not_reach_are_left_out_or_tried_again(attempts):
    unreached = UnreachedError({"a": "Connection refused", "c": "no answer"})
    failure, seen = attempts([CRASHED, unreached, None], fewest=1)
    assert (failure, [names for names, *_ in seen]) == (None, ["abc", "abc", "b"])
    failure, seen = attempts([CRASHED, unreached, None])
    assert (failure, [names for names, *_ in seen]) == (None, ["abc"] * 3)


def test_only_as_many_hosts_are_taken_as_the_batch_fits(attempts):
    _, seen = attempts([CRASHED, absent("b"), None], names="abcde", fewest=1, batch=30)
    assert seen[-1][0] == "acd"


def test_too_few_hosts_and_a_layout_that_fits_none_are_errors(attempts):
    with pytest.raises(LaunchError, match="no word\n--allow-fewer-nodes 2: fewer than that are left"):
        attempts([CRASHED, absent("b", "c")], fewest=2)
    with pytest.raises(RecipeError, match=r"train.global_batch_size 18 is not a multiple"):
        attempts([CRASHED, absent("c")], fewest=2, batch=18)


def test_without_fewer_nodes_hosts_are_waited_for_again(attempts):
    failure, seen = attempts([CRASHED, absent("b"), None])
    assert (failure, [names for names, *_ in seen]) == (None, ["abc"] * 3)
    failure, seen = attempts([absent("b")])
    assert (failure.absent, len(seen)) == (("b",), 1)


def test_a_launcher_program_that_cannot_reach_a_host_is_a_crash_at_a_restart_alone(attempts):
    unreached = Failure(rank=0, when=1.0, exit_code=USER_ERROR, text="pdsh ended", of_launcher=True, passing=True)
    failure, seen = attempts([CRASHED, unreached, unreached, None])
    assert (failure, len(seen)) == (None, 4)
    failure, seen = attempts([CRASHED, *[unreached] * 3])
    assert (failure.exit_code, len(seen)) == (CRASH, 4)
    failure, seen = attempts([unreached])
    assert (failure.exit_code, len(seen)) == (USER_ERROR, 1)


def test_a_new_run_has_one_directory_for_all_attempts_which_stays_only_if_it_is_used(attempts, tmp_path):
    used = []
    attempts([CRASHED, None], run_dir=None, use=used.append)
    assert len(used) == 2
    assert len(set(used)) == 1
    assert list((tmp_path / "runs").iterdir()) == []

    def fail_early(run_dir):
        with held(run_dir):
            pass

    attempts([absent("b")], run_dir=None, use=fail_early)
    assert list((tmp_path / "runs").iterdir()) == []
    attempts([CRASHED, None], run_dir=None, use=lambda run_dir: (run_dir / "recipe.yml").touch())
    assert [path.name for path in (tmp_path / "runs").rglob("*.yml")] == ["recipe.yml"]
