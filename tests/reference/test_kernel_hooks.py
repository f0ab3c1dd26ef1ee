"""Every kernel hook has a reference kernel and a class of the conformance kit, so none goes untested."""

import pytest

from pretrain.conformance import suite
from pretrain.plugins.host.manager import KERNEL_HOOKS
from pretrain.reference import plugin

OPERATIONS = [hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS]


def test_the_reference_implements_every_kernel_hook_and_no_backend():
    assert [name for name in OPERATIONS if not getattr(plugin, f"pretrain_{name}").pretrain_impl] == []
    assert not hasattr(plugin, "pretrain_backend")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_kernel_hook_has_a_conformance_class_with_tests(operation):
    name = "Test" + operation.replace("_", " ").title().replace(" ", "")
    assert name in suite.__all__
    assert any(member.startswith("test_") for member in dir(getattr(suite, name)))
