"""The device that is planned for."""

from __future__ import annotations

from plan.made_plan import GIB, recipe
from pretrain.plan.device import find_device


def test_ranks_on_the_cpu_share_its_memory():
    device = find_device(recipe(), None, None, 8 * GIB, ranks=4)
    assert (device.backend_name, device.memory, device.is_shared) == ("cpu", 2 * GIB, True)


def test_every_rank_has_a_device_of_a_name_for_itself():
    device = find_device(recipe(), None, "NVIDIA A100-SXM4-80GB", None, ranks=4)
    assert (device.memory, device.is_shared) == (80 * GIB, False)
