"""Every kernel hook has a reference implementation and a class of the conformance kit.

So no device needs to bring a kernel to train, and none that it brings goes untested. That every hook is documented with
its exact signature is tested in tests/docs/test_hooks_page.py.
"""

from __future__ import annotations

import pytest

from pretrain.plugins.host.registration import HOOKS
from pretrain.reference import plugin
from pretrain.testing import suite

OPERATIONS = [hook.removeprefix("pretrain_") for hook in HOOKS if hook != "pretrain_backend"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kernel_hook_has_a_reference(operation):
    hook = getattr(plugin, f"pretrain_{operation}")
    assert hook.pretrain_impl, "without @hookimpl it would never be called"


def test_the_reference_has_no_backend_hook():
    assert not hasattr(plugin, "pretrain_backend")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kernel_hook_has_a_conformance_class_with_tests(operation):
    name = "Test" + operation.replace("_", " ").title().replace(" ", "")
    assert name in suite.__all__
    assert any(member.startswith("test_") for member in dir(getattr(suite, name)))
