"""A hook that would never be called is an error that names the plugin."""

from __future__ import annotations

import pytest

from pretrain.errors import BackendError
from pretrain.plugins.host import manager
from pretrain.plugins.host.manager import HOOKS


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
    assert len(HOOKS) == 11


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
    assert "belongs into the group pretrain.backends" in failure(site, "")


def test_a_module_registered_twice_is_named(site):
    site.plugin("one", "")
    site.install("again", "1.0", "pretrain.plugins", two="one_plugin")
    assert "plugin 'two' (again 1.0) is registered twice" in failure(site, "")
