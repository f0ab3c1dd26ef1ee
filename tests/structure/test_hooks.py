"""Every kernel hook has a reference implementation, so that no device needs to bring a kernel to train.

That every hook is documented with its exact signature is tested in tests/plugins/test_documentation.py.
"""

from __future__ import annotations

import ast

import pytest

from pretrain.plugins.registration import HOOKS
from structure.sources import core

KERNEL_HOOKS = [hook for hook in HOOKS if hook != "pretrain_backend"]


@pytest.fixture(scope="module")
def reference_hooks():
    """The hooks of pretrain.reference.plugin, marked as such."""
    (plugin,) = (source for source in core() if source.name == "reference/plugin.py")
    functions = (node for node in plugin.tree.body if isinstance(node, ast.FunctionDef))
    return {node.name for node in functions if [ast.unparse(mark) for mark in node.decorator_list] == ["hookimpl"]}


def test_every_kernel_hook_has_a_reference_and_the_reference_brings_no_device(reference_hooks):
    assert reference_hooks == set(KERNEL_HOOKS)
