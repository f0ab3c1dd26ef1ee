"""The launcher's line about a training that cannot fit."""

from __future__ import annotations

import pytest

from plugins.fake_site import reference, site
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.placement import KnownDevice, device_in, least_memory, make_placement, memory_notice
from pretrain.plugins.host.discovery import find_backend
from pretrain.plugins.host.manager import load_alone
from pretrain.recipe import make_recipe, to_yaml
from pretrain.recipe.layout import lay_out
from tools.plan.made_plan import RECIPE

__all__ = ["reference", "site"]

NAMED = """
from pretrain.plugins.backend import Figures


def named(self, device_name):
    assert device_name == "Chip 9"
    other = FakeBackend()
    other.figures = lambda: Figures(memory={memory})
    return other


FakeBackend.named = named
FakeBackend.device_count = lambda self: 4
FakeBackend.figures = lambda self: 1 / 0  # would open a device context
FakeBackend.memory = FakeBackend.figures
"""
FOUND = "Available('4 x Chip 9, driver 1')"
RECIPE_OF_A_RUN = make_recipe(RECIPE, source="tiny.yml")
LEAST = least_memory(RECIPE_OF_A_RUN, lay_out(RECIPE_OF_A_RUN, 4))
GIB = 2**30


def notice(memory, world_size=4, overrides=()):
    return memory_notice(RECIPE_OF_A_RUN, overrides, world_size, KnownDevice("Chip 9", memory))


def test_nothing_is_said_up_to_the_bound():
    assert notice(LEAST) == ""
    assert notice(80 * GIB) == ""
    assert memory_notice(RECIPE_OF_A_RUN, (), 4, None) == ""


def test_beyond_it_one_line_says_so_and_names_the_command_that_shows_more():
    large = make_recipe(RECIPE, ["model.hidden_size=12288", "model.num_attention_heads=96"], source="my recipe.yml")
    line = memory_notice(large, ("model.hidden_size=12288",), 8, KnownDevice("Chip 9", 32 * GIB))
    assert line == (
        "memory: weights, gradients and optimizer need at least 54.0 GiB per rank, but a Chip 9 has 32 GiB: "
        "the run cannot fit; "
        "pretrain plan 'my recipe.yml' --device 'Chip 9' --devices 8 --set model.hidden_size=12288 shows more"
    )


def test_ranks_that_do_not_fit_the_recipe_have_their_own_error():
    assert notice(1, world_size=3) == ""


def placed(tmp_path, site, memory, availability=FOUND, **options):
    site.backend("fake", NAMED.format(memory=memory), availability=availability)
    (tmp_path / "tiny.yml").write_text(to_yaml(RECIPE_OF_A_RUN))
    options = {"nodes": Nodes(), "nproc": None, "world": None, **options}
    return make_placement(tmp_path / "tiny.yml", (), "fake", **options)


def test_a_placement_carries_the_line_without_opening_a_device_context(tmp_path, site):
    placement = placed(tmp_path, site, LEAST - 1)
    assert placement.memory_notice.startswith("memory: weights, gradients and optimizer need at least 0.0 GiB")
    assert placement.notice == ""


@pytest.mark.parametrize("memory", [LEAST, None])
def test_devices_with_room_or_of_unknown_memory_have_none(tmp_path, site, memory):
    assert placed(tmp_path, site, memory).memory_notice == ""


def test_ranks_of_another_launcher_do_not_repeat_it(tmp_path, site):
    from pretrain.launch.world import node_worlds

    (world, *_) = node_worlds([4], 0, "localhost", 29500)
    assert placed(tmp_path, site, 1, world=world).memory_notice == ""


@pytest.mark.parametrize("availability", ["Available('8 GPUs')", "Available('')", "Available('2 x Other 3')"])
def test_devices_that_the_backend_does_not_name_or_know_have_none(site, availability):
    source = (
        NAMED.format(memory=1)
        .replace("assert device_name ==", "if device_name !=")
        .replace('"Chip 9"\n', '"Chip 9":\n        return Backend.named(self, device_name)\n')
    )
    site.backend("fake", source, availability=availability)
    plugins = load_alone(find_backend("fake"))
    assert device_in(plugins, plugins.backend.availability().detail) is None
