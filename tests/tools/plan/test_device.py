"""The device that is planned for."""

from __future__ import annotations

import pytest

from pretrain.errors import BackendError
from pretrain.tools.plan.device import DeviceOptions, find_device
from tools.plan.made_plan import GIB, recipe

A100 = "NVIDIA A100-SXM4-80GB"


def test_ranks_on_the_cpu_share_its_memory():
    device = find_device(recipe(), DeviceOptions(memory=8 * GIB), ranks=4)
    assert (device.backend_name, device.memory, device.is_shared) == ("cpu", 2 * GIB, True)


def test_every_rank_has_a_device_of_a_name_for_itself():
    device = find_device(recipe(), DeviceOptions(name=A100), ranks=4)
    assert (device.memory, device.is_shared) == (80 * GIB, False)


def test_what_the_user_says_of_a_device_replaces_its_table():
    wanted = DeviceOptions(name=A100, node_bandwidth=12.5e9, link_bandwidth=64e9, devices_per_node=4)
    device = find_device(recipe(), wanted)
    figures = device.figures
    assert (figures.node_bandwidth, figures.link_bandwidth, figures.devices_per_node) == (12.5e9, 64e9, 4)
    assert device.sources == {
        "node_bandwidth": "--network",
        "link_bandwidth": "--link",
        "devices_per_node": "--devices-per-node",
    }
    assert figures.memory_bandwidth == find_device(recipe(), DeviceOptions(name=A100)).figures.memory_bandwidth


def test_speeds_of_other_dtypes_than_the_recipes_are_those_of_the_device():
    device = find_device(recipe(["precision.dtype=bf16"]), DeviceOptions(name="NVIDIA H100 80GB HBM3"))
    assert (device.peak_flops, device.peak_flops_fp8, device.peak_flops_fp32) == (989.4e12, 2 * 989.4e12, 67e12)
    assert find_device(recipe(), DeviceOptions(name=A100)).peak_flops_fp8 is None


def test_a_node_of_unknown_size_has_eight_devices():
    """Else all devices would be in one node, and no message would pass the network."""
    device = find_device(recipe(), DeviceOptions(name="NVIDIA A800-SXM4-80GB"))
    assert (device.figures.devices_per_node, device.figures.node_bandwidth) == (8, None)
    assert device.sources == {"devices_per_node": "assumed"}


@pytest.mark.parametrize("name", ["A100", "NVIDIA A100"])
def test_a_name_that_is_short_for_several_devices_is_refused_with_theirs(name):
    with pytest.raises(BackendError, match=r"fits several devices.*\n.* A100-SXM4-40GB, A100-SXM4-80GB, "):
        find_device(recipe(), DeviceOptions(name=name))


def test_a_name_that_is_short_for_one_device_is_refused_with_that():
    with pytest.raises(BackendError, match=r"80GB' is not a device's full name\.\nName it in full: H100 80GB HBM3\.$"):
        find_device(recipe(), DeviceOptions(name="NVIDIA H100 80GB"))
