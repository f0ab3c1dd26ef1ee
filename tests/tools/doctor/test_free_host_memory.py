"""Free memory of the host: the machine's, or less where a control group of the process allows less."""

from __future__ import annotations

import pytest

from pretrain.tools.doctor import host_limits as memory
from pretrain.tools.doctor.device_speed import GIB
from pretrain.tools.doctor.host_limits import free_host_memory


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
