"""A plugin that cannot be imported: its name, the cause, and the remedy."""

from __future__ import annotations

import re

import pytest

from plugins.fake_site import DEVICE
from pretrain.errors import BackendError
from pretrain.plugins.host import discovery, manager
from pretrain.plugins.host.discovery import cause, load_plugin


def failure(name: str) -> str:
    with pytest.raises(BackendError) as error:
        load_plugin(discovery.find_backend(name))
    assert error.value.__cause__ is not None
    return str(error.value)


def test_a_missing_library_is_named(site):
    site.install("pretrain-npu", "0.1.0", "pretrain.backends", npu=site.module("npu_backend", "import vendor_library"))
    first, second = failure("npu").splitlines()
    assert first == (
        "backend 'npu' (pretrain-npu 0.1.0) failed to import: ModuleNotFoundError: No module named 'vendor_library'"
    )
    assert "Install 'vendor_library'" in second
    assert "--backend" in second


def test_a_plugin_whose_own_files_are_missing_is_recognized(site):
    site.install("pretrain-gone", "0.1.0", "pretrain.backends", gone="pretrain_gone.plugin")
    assert "Its own files are missing: install pretrain-gone again, from its folder or wheel" in failure("gone")


def test_any_other_failure_says_how_to_see_more(site):
    site.backend("torn", "raise OSError('undefined symbol: _ZN2at')")
    assert re.search(r"OSError: undefined symbol: _ZN2at\n.*PRETRAIN_TRACEBACK=1", failure("torn"))


def test_a_plugin_that_calls_sys_exit_at_import_is_an_error(site):
    site.backend("quitter", "import sys; sys.exit('no driver')")
    assert "SystemExit: no driver" in failure("quitter")


def test_an_object_that_the_module_lacks_is_named(site):
    site.install("half", "1", "pretrain.backends", half=f"{site.module('half_backend', '')}:hooks")
    assert "has no attribute 'hooks'" in failure("half")


class TestAClassAsEntryPoint:
    SOURCE = DEVICE.format(name="fake", availability="Available()")

    def test_one_with_hooks_is_made_an_object(self, site, reference):
        hooks = "class Hooks:\n    @hookimpl\n    def pretrain_backend(self):\n        return FakeBackend()\n"
        module = site.module("fake_backend", self.SOURCE.partition("@hookimpl")[0] + hooks)
        site.install("fake", "1.0", "pretrain.backends", fake=f"{module}:Hooks")
        assert manager.load("fake").backend.name == "fake"

    @pytest.mark.parametrize(("entry", "what"), [("FakeBackend", "class"), ("pretrain_backend", "function")])
    def test_anything_else_says_what_an_entry_point_names(self, site, entry, what):
        site.install("fake", "1.0", "pretrain.backends", fake=f"{site.module('fake_backend', self.SOURCE)}:{entry}")
        with pytest.raises(BackendError) as error:
            load_plugin(discovery.find_backend("fake"))
        first, second = str(error.value).splitlines()
        assert first.startswith("backend 'fake' (fake 1.0): its entry point ")
        assert first.endswith(f"'fake_backend:{entry}' names the {what} {entry}, which has no hooks.")
        assert "Name the module whose functions are marked @hookimpl" in second


def test_a_broken_kernel_plugin_says_what_to_uninstall(site):
    site.plugin("broken", "raise ValueError('x')")
    (found,) = discovery.installed_plugins()
    with pytest.raises(BackendError, match=r"plugin 'broken' \(kernels-broken 2.0\).*\n.*pip uninstall kernels-broken"):
        load_plugin(found)


def test_a_cause_is_one_short_line():
    assert cause(ValueError("\n  first\nsecond")) == "ValueError: first"
    assert cause(KeyError()) == "KeyError"
    assert len(cause(ValueError("x" * 1000))) == 200
