"""Plugins that `--backend NAME` loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plugins.fake_site import DEVICE
from pretrain.errors import BackendError
from pretrain.plugins.host import manager
from pretrain.plugins.host.manager import HOOKS

pytestmark = pytest.mark.usefixtures("reference")


def test_a_fake_distribution_brings_a_device_with_no_change_to_the_core(site):
    site.backend("fake")
    plugins = manager.load("fake")
    assert plugins.backend.name == "fake"
    assert plugins.backend.device(0).type == "cpu"
    assert plugins.provider == "pretrain-fake 1.0"


def test_only_the_named_backend_is_imported(site):
    site.backend("fake")
    site.backend("unrelated", "raise RuntimeError('imported')")
    assert manager.load("fake").backend.name == "fake"
    assert "unrelated_backend" not in sys.modules


def test_kernels_are_asked_for_in_one_order_plugins_backend_reference(site):
    site.plugin("zeta", "")
    site.plugin("alpha", "")
    site.backend("fake")
    order = [plugin.installed.name for plugin in manager.load("fake").members]
    assert order == ["alpha", "zeta", "fake", "reference"]


def test_a_broken_kernel_plugin_stops_the_run_instead_of_vanishing(site):
    site.backend("fake")
    site.plugin("broken", "raise ValueError('no library')")
    with pytest.raises(BackendError, match=r"plugin 'broken' \(kernels-broken 2.0\) failed to import"):
        manager.load("fake")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "returns nothing"),
        ("@hookimpl\ndef pretrain_backend():\n    return 'fake'\n", "returns str"),
        ("@hookimpl\ndef pretrain_backend():\n    raise RuntimeError('boom')\n", "raised in pretrain_backend: Runtime"),
        (
            "class Half(FakeBackend):\n    device_type = None\n@hookimpl\ndef pretrain_backend():\n    return Half()\n",
            "Half.device_type must be a string",
        ),
        (
            "class Half(FakeBackend): own_variables = 'A'\n@hookimpl\ndef pretrain_backend():\n    return Half()\n",
            "Half.own_variables must be a tuple of strings",
        ),
    ],
)
def test_a_plugin_without_a_proper_device_is_named(site, source, message):
    device = DEVICE.format(name="odd", availability="None").partition("@hookimpl")[0]
    site.install("oddity", "3.1", "pretrain.backends", odd=site.module("odd_backend", device + source))
    with pytest.raises(BackendError, match=message) as error:
        manager.load("odd")
    assert "backend 'odd' (oddity 3.1)" in str(error.value)


def test_entry_point_and_backend_must_agree_on_the_name(site):
    site.backend("fake")
    site.install("alias", "1.0", "pretrain.backends", other="fake_backend")
    with pytest.raises(BackendError, match=r"its entry point is 'other', its Backend.name 'fake'"):
        manager.load("other")


def test_importing_a_backend_changes_no_environment_and_starts_nothing(site):
    """In a fresh process, because this one has long imported torch."""
    site.project(Path(__file__).parents[3] / "docs" / "example-backend")
    check = (
        "import os; before = dict(os.environ)\n"
        "from pretrain.plugins.host import discovery\n"
        "plugins = [discovery.load_plugin(found) for found in discovery.installed_backends()]\n"
        "assert {'cpu', 'example'} <= {plugin.installed.name for plugin in plugins}\n"
        "assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())\n"
        "import torch.distributed as dist; assert not dist.is_initialized()\n"
        "import torch; device = torch.accelerator.current_accelerator()\n"
        "assert device is None or not torch.get_device_module(device).is_initialized()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", check],
        check=False,
        env={**os.environ, "PYTHONPATH": str(site.folder)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr


def failure(site, source: str) -> str:
    site.backend("fake", source)
    with pytest.raises(BackendError) as error:
        manager.load("fake")
    return str(error.value)


@pytest.fixture(autouse=True)
def _reference(reference):
    pass


def test_every_hook_is_known():
    assert "pretrain_backend" in HOOKS
    assert "pretrain_attention" in HOOKS
    assert len(HOOKS) == 15


def test_a_misspelt_hook_names_the_plugin_and_the_nearest_hook(site):
    text = failure(site, "@hookimpl\ndef pretrain_atention(request):\n    return None\n")
    assert "backend 'fake' (pretrain-fake 1.0) implements 'pretrain_atention', which is not a hook." in text
    assert "Did you mean 'pretrain_attention'?" in text
    assert "pip uninstall pretrain-fake" in text


def test_a_hook_of_a_later_version_may_be_marked_optional(site):
    site.backend("fake", "@hookimpl(optionalhook=True)\ndef pretrain_mixture(request):\n    return None\n")
    assert manager.load("fake").backend.name == "fake"


def test_a_hook_without_the_mark_is_not_silently_skipped(site):
    text = failure(site, "def pretrain_norm(request):\n    return None\n")
    assert "pretrain_norm without the mark: put @hookimpl above it" in text


def test_an_argument_that_the_hook_does_not_have_is_named(site):
    text = failure(site, "@hookimpl\ndef pretrain_norm(reqest):\n    return None\n")
    assert "does not fit its hookspec" in text
    assert "reqest" in text


@pytest.mark.parametrize("option", ["wrapper", "tryfirst", "trylast"])
def test_options_that_would_change_the_order_are_refused(site, option):
    body = "    return (yield)" if option == "wrapper" else "    return None"
    text = failure(site, f"@hookimpl({option}=True)\ndef pretrain_norm(request):\n{body}\n")
    assert "marks pretrain_norm with an option" in text


def test_a_device_in_the_group_for_kernels_is_an_error_that_names_its_group(site):
    site.plugin("lost", "@hookimpl\ndef pretrain_backend():\n    return None\n")
    assert "belongs in the group pretrain.backends" in failure(site, "")


def test_a_module_registered_twice_is_named(site):
    site.plugin("one", "")
    site.install("again", "1.0", "pretrain.plugins", two="one_plugin")
    assert "plugin 'two' (again 1.0) is registered twice" in failure(site, "")
