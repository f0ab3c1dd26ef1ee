"""Listing of installed plugins, and messages about absent ones."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoints

import pytest

from pretrain import distributions
from pretrain.errors import BackendError
from pretrain.plugins.host import discovery


def test_a_backend_is_found_by_its_entry_point_without_an_import(site):
    site.backend("fake")
    found = discovery.find_backend("fake")
    assert (found.target, found.provider) == ("fake_backend", "pretrain-fake 1.0")
    assert found.label == "backend 'fake' (pretrain-fake 1.0)"
    assert "fake_backend" not in sys.modules


def test_the_cpu_backend_is_discovered_like_any_other():
    assert discovery.find_backend("cpu").target == "pretrain.cpu.plugin"


def test_backends_are_sorted_by_name_so_that_every_node_sees_one_order(site):
    site.install("c", "1", "pretrain.plugins", zeta="zeta", alpha="alpha")
    site.install("a", "1", "pretrain.plugins", mid="mid", alpha="alpha2")
    found = [(plugin.name, plugin.provider) for plugin in discovery.installed_plugins()]
    assert found == [("alpha", "a 1"), ("alpha", "c 1"), ("mid", "a 1"), ("zeta", "c 1")]


def test_an_unknown_backend_names_the_installed_ones_and_the_nearest(site):
    site.backend("fake")
    with pytest.raises(
        BackendError, match=r"backend 'fkae' is not installed. Installed: .*cpu.*, fake. Did you mean 'fake'"
    ):
        discovery.find_backend("fkae")


def test_a_name_in_capitals_is_recognized():
    with pytest.raises(BackendError, match="Did you mean 'cpu'"):
        discovery.find_backend("CPU")


@pytest.mark.parametrize("name", discovery.FIRST_PARTY)
def test_a_first_party_backend_that_is_missing_says_how_to_get_it_in_three_lines(name, monkeypatch):
    monkeypatch.setattr(distributions, "all_entry_points", EntryPoints)
    with pytest.raises(BackendError) as error:
        discovery.find_backend(name)
    lines = str(error.value).splitlines()
    assert len(lines) == 3
    assert f"pip install ./backends/{name}" in lines[1]
    assert f"pip install pretrain_{name}-*.whl" in lines[1]


def test_two_distributions_of_one_name_are_an_error_that_names_both(site):
    site.install("one", "1.0", "pretrain.backends", twin="one_backend")
    site.install("other", "2.0", "pretrain.backends", twin="other_backend")
    with pytest.raises(BackendError, match=r"'twin' is registered by one 1.0 and other 2.0\.\nKeep one: pip uninstall"):
        discovery.find_backend("twin")


@pytest.mark.parametrize("backport", [False, True])
def test_a_distribution_without_metadata_is_still_named(site, backport, monkeypatch):
    """importlib_metadata, where something imports it, finds distributions in place of importlib.metadata."""
    if backport:
        finder = pytest.importorskip("importlib_metadata").MetadataPathFinder()
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    site.install("bare", "1.0", "pretrain.backends", bare="bare_backend")
    (site.folder / "bare-1.0.dist-info" / "METADATA").unlink()
    assert discovery.find_backend("bare").provider.startswith("unknown distribution")


@pytest.mark.parametrize("distribution", ["aaa", "zzz"])
def test_a_plugin_that_takes_a_name_of_the_core_is_the_one_to_uninstall(site, distribution):
    site.install(distribution, "1.0", "pretrain.backends", cpu="their_cpu")
    with pytest.raises(BackendError) as error:
        discovery.find_backend("cpu")
    assert str(error.value).splitlines()[1] == f"Keep one: pip uninstall {distribution}"


def test_a_misspelt_entry_point_group_is_reported(site):
    site.install("kernels-lost", "1.0", "pretrain.plugin", lost="lost_plugin")
    (line,) = discovery.unread_groups()
    assert line.startswith(
        "kernels-lost 1.0 registers 'lost' in the entry-point group 'pretrain.plugin', which pretrain "
    )
    assert line.endswith("does not read. Did you mean 'pretrain.plugins'?")
