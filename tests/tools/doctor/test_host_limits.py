"""Limits of the operating system."""

from __future__ import annotations

import resource
from types import MappingProxyType, SimpleNamespace

import pytest

from pretrain.cpu.backend import CpuBackend
from pretrain.machine import available_cores
from pretrain.recipe import make_recipe
from pretrain.tools.doctor import host
from pretrain.tools.doctor import host as memory
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.host import EFFECTS, GIB, examine_limits, examine_variables, free_host_memory
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
        monkeypatch.setattr(host.os, "statvfs", lambda path: answer)
        monkeypatch.setattr(host, "SHM", tmp_path)
        monkeypatch.setattr(host, "CGROUP", tmp_path)
        for name, value in (pids or {}).items():
            (tmp_path / f"pids.{name}").write_text(f"{value}\n")
        return list(examine_limits(make_recipe(SMALLEST, overrides), world or world_of()))

    return find


def test_usual_limits_are_ok(found):
    assert {f.check: f.verdict for f in found()} == dict.fromkeys(
        ("open files", "processes", "shared memory"), Verdict.OK
    )


def test_a_hard_limit_below_what_the_ranks_need_is_named(found):
    finding = only(found(soft=1024, hard=1024, world=world_of(0, 64, 8)), "open files")
    assert finding.verdict is Verdict.LOOK
    assert finding.text == "1024 open files allowed, about 1792 needed by a rank of 64"
    assert finding.remedy.startswith("Raise the hard limit in ")


def test_a_low_soft_limit_is_well_since_a_run_raises_it(found):
    assert only(found(soft=256, hard=4096, world=world_of(0, 64, 8)), "open files").verdict is Verdict.OK


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


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Return the free and total GiB of a machine with 64 GiB, of which 40 are free, and with these control groups."""

    def measure(groups, own="/job/step"):
        (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:   {40 * GIB // 1024} kB\n")
        (tmp_path / "own").write_text(f"12:cpu:/old\n0::{own}\n")
        for name, files in groups.items():
            folder = tmp_path / "groups" / name
            folder.mkdir(parents=True, exist_ok=True)
            for file, value in files.items():
                (folder / f"memory.{file}").write_text(f"{value}\n")
        monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
        monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "own")
        monkeypatch.setattr(memory, "CGROUP", tmp_path / "groups")
        monkeypatch.setattr(memory.os, "sysconf", {"SC_PAGE_SIZE": GIB, "SC_PHYS_PAGES": 64}.__getitem__)
        return tuple(number / GIB for number in free_host_memory())

    return measure


def limit(most, now, **stat):
    lines = "\n".join(f"{name} {value}" for name, value in stat.items())
    return {"max": most, "current": now, "stat": lines}


def test_the_machines_where_no_group_has_a_limit(machine):
    assert machine({}) == (40, 64)
    assert machine({"job/step": limit("max", 3 * GIB)}) == (40, 64)


@pytest.mark.parametrize("group", ["job/step", "job", "."])
def test_the_limit_of_the_own_group_or_of_one_around_it(machine, group):
    assert machine({group: limit(8 * GIB, 3 * GIB)}) == (5, 8)


def test_a_group_outside_of_the_containers_root_has_the_roots_limit(machine):
    assert machine({".": limit(8 * GIB, 3 * GIB)}, own="/../other") == (5, 8)


def test_a_group_of_others_does_not_matter(machine):
    assert machine({"job/other": limit(GIB, 0)}) == (40, 64)


def test_a_limit_above_what_the_machine_has_free_does_not_matter(machine):
    assert machine({"job": limit(60 * GIB, 0)}) == (40, 60)


def test_files_that_were_read_are_dropped_when_memory_is_needed(machine):
    assert machine({"job": limit(8 * GIB, 8 * GIB, anon=2 * GIB, inactive_file=5 * GIB)}) == (5, 8)


def test_a_group_that_is_over_its_limit_has_nothing_free(machine):
    assert machine({"job": limit(8 * GIB, 9 * GIB)}) == (0, 8)


class Device(CpuBackend):
    effective_variables = MappingProxyType({"NCCL_P2P_DISABLE": "1 copies through host memory"})


def texts(given, ranks=1):
    return [(f.verdict, f.text) for f in examine_variables(Device(), given, ranks)]


def test_none_is_set():
    number = len(EFFECTS) + 2
    assert texts({"HOME": "x", "LD_PRELOAD": ""}) == [
        (Verdict.OK, f"none of {number} variables that change a training or its speed is set")
    ]


def test_one_of_torchs_and_one_of_the_devices_libraries():
    assert texts({"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_P2P_DISABLE": "1"}) == [
        (Verdict.LOOK, "NCCL_P2P_DISABLE=1: 1 copies through host memory"),
        (Verdict.LOOK, "TORCH_DISTRIBUTED_DEBUG=DETAIL: DETAIL checks every collective on all ranks; slower"),
    ]


@pytest.mark.parametrize("ranks", [1, available_cores() + 1])
def test_threads_other_than_the_ranks_share_of_the_cores(ranks):
    share = max(1, available_cores() // ranks)
    ((verdict, text),) = texts({"OMP_NUM_THREADS": str(share + 6)}, ranks)
    assert verdict is Verdict.LOOK
    assert text.endswith(f"this rank's share of the cores is {share}")
    assert texts({"OMP_NUM_THREADS": str(share)}, ranks)[0][0] is Verdict.OK  # the launcher's own


def test_the_advice_about_threads_holds_whatever_started_the_ranks():
    share = available_cores()
    (finding,) = examine_variables(Device(), {"OMP_NUM_THREADS": str(share + 1)}, 1)
    command = f"export OMP_NUM_THREADS={share}"
    assert finding.remedy == f"Run {command} before the command that starts the ranks, on every node."
