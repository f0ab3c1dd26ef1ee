"""Limits of the operating system."""

from __future__ import annotations

import resource
from types import SimpleNamespace

import pytest

from pretrain.recipe import make_recipe
from pretrain.tools.doctor import host_limits
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.host_limits import GIB, examine_limits
from recipe.smallest import SMALLEST
from tools.doctor.conftest import world_of
from tools.doctor.found import only

OFFLOADED = ("engine.name=deepspeed", "engine.zero.stage=2", "engine.zero.offload_optimizer.device=cpu")


@pytest.fixture
def found(monkeypatch, tmp_path):
    """Return the findings of a rank with given soft and hard limits, free bytes of shared memory, and a container's."""

    def find(*overrides, soft=10**6, hard=10**6, shared=8 * GIB, pids=None, world=None):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
        answer = SimpleNamespace(f_frsize=1, f_bavail=shared, f_blocks=64 * GIB)
        monkeypatch.setattr(host_limits.os, "statvfs", lambda path: answer)
        monkeypatch.setattr(host_limits, "SHM", tmp_path)
        monkeypatch.setattr(host_limits, "CGROUP", tmp_path)
        for name, value in (pids or {}).items():
            (tmp_path / f"pids.{name}").write_text(f"{value}\n")
        return list(examine_limits(make_recipe(SMALLEST, overrides), world or world_of()))

    return find


def test_usual_limits_are_ok(found):
    assert {f.check: f.verdict for f in found()} == dict.fromkeys(
        ("open files", "processes", "shared memory"), Verdict.OK
    )


def test_too_few_open_files_for_the_ranks_are_named(found):
    finding = only(found(soft=1024, hard=524288, world=world_of(0, 64, 8)), "open files")
    assert finding.verdict is Verdict.LOOK
    assert finding.text == "1024 open files allowed, about 1536 needed by a rank of 64"
    assert finding.remedy == "ulimit -n 65536, before the command on every node."


@pytest.mark.parametrize(("hard", "proposed"), [(10**6, 131584), (131600, 131584)])
def test_as_many_open_files_are_proposed_as_many_ranks_need(found, hard, proposed):
    finding = only(found(soft=65536, hard=hard, world=world_of(0, 8192, 1024)), "open files")
    assert finding.remedy == f"ulimit -n {proposed}, before the command on every node."


def test_no_more_open_files_are_proposed_than_the_hard_limit_allows(found):
    assert only(found(soft=256, hard=4096), "open files").remedy.startswith("ulimit -n 4096,")


def test_a_hard_limit_is_raised_elsewhere(found):
    finding = only(found(soft=256, hard=256), "open files")
    assert finding.remedy.startswith("Raise the hard limit, 256,")


def test_no_limit_is_enough(found):
    finding = only(found(soft=resource.RLIM_INFINITY, hard=resource.RLIM_INFINITY), "open files")
    assert (finding.verdict, finding.text[:25]) == (Verdict.OK, "any number of open files ")


def test_the_containers_limit_of_processes_counts(found):
    finding = only(found(pids={"max": 1000, "current": 600}), "processes")
    assert (finding.verdict, finding.text) == (
        Verdict.LOOK,
        "400 processes and threads allowed, about 512 needed by this node's ranks",
    )
    assert only(found(pids={"max": "max", "current": 600}), "processes").verdict is Verdict.OK


@pytest.mark.parametrize(
    ("shared", "ranks", "verdict"),
    [(64 * 2**20, 8, Verdict.LOOK), (64 * 2**20, 1, Verdict.OK), (2**20, 1, Verdict.WRONG), (GIB, 8, Verdict.OK)],
)
def test_little_shared_memory(found, shared, ranks, verdict):
    assert only(found(shared=shared, world=world_of(0, ranks)), "shared memory").verdict is verdict


@pytest.mark.parametrize(("overrides", "world"), [(OFFLOADED, world_of()), ((), world_of(0, 4, nodes=2))])
def test_locked_memory_counts_where_states_are_offloaded_or_nodes_talk(found, overrides, world):
    finding = only(found(*overrides, soft=8 * 2**20, world=world), "locked memory")
    assert finding.verdict is Verdict.LOOK
    assert finding.text.startswith("8 MiB may be locked")
    unlimited = found(*overrides, soft=resource.RLIM_INFINITY, world=world)
    assert only(unlimited, "locked memory").verdict is Verdict.OK
