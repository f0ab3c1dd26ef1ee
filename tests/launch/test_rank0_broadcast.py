"""Ranks that torchrun or srun started agree on one run directory before they train."""

import dataclasses
import os
import subprocess
import sys
from datetime import timedelta

import pytest
from torch.distributed import TCPStore

from pretrain.errors import LostRanksError, RunError
from pretrain.launch import rank0_broadcast
from pretrain.launch.job import ForwardJob
from pretrain.launch.processes.children import Processes
from pretrain.launch.processes.failure import CRASH, Failure
from pretrain.launch.rank0_broadcast import HOST, gathered_on_rank0, rank0_decides, tell_rank0
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

pytestmark = pytest.mark.usefixtures("forked_python")
RANK = """import sys
from pretrain.launch.job import job_of
from pretrain.launch.schedulers import current_world
job_of(sys.argv[1]).run(current_world())
"""


def start_as_torchrun_does(jobs, cwd, port=None, more=({}, {})):
    return [
        subprocess.Popen(
            [sys.executable, "-c", RANK, job.to_json()],
            env=os.environ | world.environment() | more[world.rank],
            cwd=cwd,
            stderr=subprocess.PIPE,
            text=True,
        )
        for job, world in zip(jobs, node_worlds([2], 0, LOCALHOST, port or free_port()), strict=True)
    ]


def test_all_ranks_get_the_directory_that_rank_0_makes_and_can_make_a_process_group(job, tmp_path):
    ranks = start_as_torchrun_does([job("sum_of_ranks", run_dir=None, prepared=False)] * 2, tmp_path)
    assert [(rank.communicate(timeout=60)[1], rank.returncode) for rank in ranks] == [("", 0), ("", 0)]
    (run_dir,) = (tmp_path / "runs").iterdir()
    assert [(run_dir / f"{rank}.sum").read_text() for rank in range(2)] == ["1", "1"]


def test_an_error_of_rank_0_ends_the_others_without_output(job, tmp_path):
    (tmp_path / "run/recipe.yml").touch()
    first, second = start_as_torchrun_does([job("sum_of_ranks", prepared=False)] * 2, tmp_path)
    assert "already holds a run" in first.communicate(timeout=60)[1]
    assert (second.communicate(timeout=60)[1], second.returncode) == ("", 2)


def test_ranks_with_different_recipes_do_not_train_and_rank_0_says_why(job, tmp_path):
    """The files of two hosts: an override stands for a recipe that was edited on one of them."""
    jobs = [
        job("sum_of_ranks", run_dir=None, prepared=False),
        job("sum_of_ranks", run_dir=None, prepared=False, overrides=("optimizer.lr=0.5",)),
    ]
    first, second = start_as_torchrun_does(jobs, tmp_path)
    assert "  optimizer.lr: 0.5 on " in first.communicate(timeout=60)[1]
    assert (second.communicate(timeout=60)[1], second.returncode) == ("", 2)
    assert list(tmp_path.rglob("*.sum")) == []


def test_ranks_that_die_before_they_have_told_their_recipe_are_named_with_known_hosts(monkeypatch):
    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(rank0_broadcast, "_store", lambda: store)
    worlds = node_worlds([2, 2], 0, LOCALHOST, 0) + node_worlds([2, 2], 1, LOCALHOST, 0)
    for world in worlds[:3]:
        tell_rank0(HOST, f"node-{world.node_rank}", world)
    tell_rank0("recipe", "{}", worlds[0])
    with pytest.raises(LostRanksError) as lost:
        gathered_on_rank0("recipe", worlds[0], timedelta(seconds=0.12))
    assert str(lost.value).startswith(
        "These ranks have not sent their recipe within 0.002 minutes: rank 1 on node-0, rank 2 on node-1, rank 3.\n"
    )
    assert lost.value.ranks == 3
    failure = Failure.of(lost.value, 0, with_traceback=False)
    assert (str(failure), failure.exit_code) == (str(lost.value), CRASH)  # which a restart may follow


def test_the_launcher_shows_which_rank_is_silent_and_waits_for_it_no_longer(recipe_file, tmp_path):
    """Of two nodes, for which one launcher stands; rank 0 would wait 30 s for rank 2 to read its decision."""
    port = free_port()
    worlds = [world for node in range(2) for world in node_worlds([2, 1], node, LOCALHOST, port)]
    job = ForwardJob(recipe=str(recipe_file), backend="cpu", function="silent_rank:evaluate", reads_data=True)
    failure = Processes(job, worlds).run()
    assert str(failure).startswith("These ranks have not sent their recipe within 0.002 minutes: rank 2.\n")
    assert failure.exit_code == CRASH


def test_an_error_is_told_or_printed_before_the_other_ranks_hear_that_they_end(monkeypatch, capfd):
    """Their launcher, or torchrun, may end rank 0 as soon as one of them has ended."""
    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(rank0_broadcast, "_store", lambda: store)
    monkeypatch.setattr(rank0_broadcast, "_await_readers", lambda *_: None)
    told, world = [], node_worlds([2], 0, LOCALHOST, 0)[0]

    def decide():
        raise RunError("the run is there.")

    def tell_error(error):
        told.append((str(error), store.check(["decision on a"])))

    with pytest.raises(RunError):
        rank0_decides(decide, dataclasses.replace(world, tell_error=tell_error), about="a")
    with pytest.raises(SystemExit, match="2"):
        rank0_decides(decide, world, about="b")
    assert (told, capfd.readouterr().err) == ([("the run is there.", False)], "the run is there.\n")


def test_rank_0_says_how_many_ranks_have_come(monkeypatch):
    monkeypatch.setattr(rank0_broadcast, "_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr(os, "environ", os.environ | node_worlds([2], 0, LOCALHOST, free_port())[0].environment())
    with pytest.raises(LostRanksError, match=r"only (1 of 2|some) ranks have joined within 0:00:01"):
        rank0_broadcast.store_of_ranks.__wrapped__()


@pytest.mark.parametrize("failed", [pytest.param(0, marks=pytest.mark.full), 1])
def test_ranks_of_torchrun_meet_after_a_restart_that_one_agent_alone_has_counted(job, tmp_path, failed):
    """The agents' store outlives the ranks, and holds what those before a restart have written."""
    agent = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    of_agents = [{"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"} for _ in range(2)]
    given = job("sum_after_restart", prepared=False)
    for restarts in range(2):
        ranks = start_as_torchrun_does([given, given], tmp_path, agent.port, of_agents)
        assert [rank.communicate(timeout=60)[1] for rank in ranks] == ["", ""]
        expected = f"sum 1, restarts {restarts}, resume {restarts > 0}"
        assert [(tmp_path / f"run/{rank}.sum").read_text() for rank in range(2)] == [expected, expected]
        (tmp_path / "run/recipe.yml").touch()
        of_agents[failed]["TORCHELASTIC_RESTART_COUNT"] = "1"
