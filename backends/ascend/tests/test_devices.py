"""Chips by name. Names are compared whole: "Ascend910B" is of the first generation, "Ascend910B1" an A2."""

from __future__ import annotations

import pytest

from pretrain_ascend import devices
from pretrain_ascend.devices import TABLE, Family

FIRST = ("Ascend910PremiumA", "Ascend910ProA", "Ascend910A", "Ascend910ProB", "Ascend910B")
A2 = ("Ascend910B1", "Ascend910B2", "Ascend910B2C", "Ascend910B3", "Ascend910B4", "Ascend910B4-1")
A3 = ("Ascend910_9391", "Ascend910_9392", "Ascend910_9381", "Ascend910_9382", "Ascend910_9372", "Ascend910_9362")


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (FIRST, Family.FIRST),
        (A2, Family.A2),
        ((*A3, "Ascend910_9363"), Family.A3),
        (("Ascend950DT", "Ascend950PR_9589"), Family.A5),
        (("Ascend310P3", "Ascend910", "Ascend910B5", "ascend910b1", "Ascend910_93", "Card 1"), None),
    ],
)
def test_every_name_has_its_family(names, family):
    assert {devices.family_of(name) for name in names} == {family}


def test_families_are_in_the_order_of_the_generations():
    assert sorted(Family) == [Family.FIRST, Family.A2, Family.A3, Family.A5]
    assert [str(family) for family in Family] == ["910A", "A2", "A3", "950"]


def test_no_name_is_listed_twice():
    names = [device.name for device in TABLE]
    assert len(set(names)) == len(names)


def test_peaks_are_huaweis_own_figures():
    peaks = {device.name: device.peak / 1e12 for device in TABLE if device.peak}
    assert peaks == {
        "Ascend910A": 256,
        "Ascend910B1": 400,
        "Ascend910B2": 376,
        "Ascend910B3": 313,
        "Ascend910B4": 280,
        "Ascend910B4-1": 280,
        "Ascend910_9362": 280,
        "Ascend910_9382": 376,
        "Ascend910_9392": 400,
    }


@pytest.mark.parametrize(
    ("name", "gib", "link", "others"),
    [
        ("Ascend910A", 32, 30e9, 12.5e9),
        ("Ascend910B1", 64, 196e9, 25e9),
        ("Ascend910B4", 32, None, None),
        ("Ascend910B4-1", 64, None, None),
        ("Ascend910B2C", None, None, None),
        ("Ascend910_9391", 64, 196e9, 25e9),
    ],
)
def test_figures_are_left_out_where_none_is_published(name, gib, link, others):
    figures = devices.find(name).figures
    assert figures.memory == (gib and gib * 2**30)
    assert (figures.link_bandwidth, figures.node_bandwidth) == (link, others)


def test_a_die_is_a_device_of_a_node_with_sixteen():
    nodes = {device.family: device.figures.devices_per_node for device in TABLE if device.figures.link_bandwidth}
    assert nodes == {Family.FIRST: 8, Family.A2: 8, Family.A3: 16}


def test_without_torch_npu_no_device_is_here(monkeypatch):
    monkeypatch.delitem(devices.sys.modules, "torch_npu", raising=False)
    assert devices.here() == ""
    assert devices.family_of("") is None
