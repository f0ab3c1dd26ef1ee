"""docs/hooks.md agrees with the code, for every hook."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hooks_page import example, page, request_type, signature
from pretrain.conformance import suite
from pretrain.plugins import requests, signatures
from pretrain.plugins.host.discovery import REFERENCE, load_plugin
from pretrain.plugins.host.manager import HOOKS, KERNEL_HOOKS, register
from pretrain.plugins.negotiation.kernels import Kernels

PAGE = Path(__file__).parents[2] / "docs" / "hooks.md"


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run: python docs/generate/hooks_page.py"


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_is_on_the_page_with_its_exact_signature(hook):
    source = Path(requests.__file__).with_name("hookspecs.py").read_text()
    assert f"def {signature(hook)}:\n" in source
    assert f"## {hook}\n\n```python\n@hookimpl\ndef {signature(hook)}: ...\n```" in PAGE.read_text()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_has_an_example_that_implements_it(hook):
    (function,) = ast.parse(example(hook)).body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == hook
    assert [ast.unparse(mark) for mark in function.decorator_list] == ["hookimpl"]
    assert isinstance(function.body[-1], ast.Return)


@pytest.mark.parametrize("hook", KERNEL_HOOKS)
def test_a_kernel_hook_has_a_request_type_and_a_typed_kernel(hook):
    operation = hook.removeprefix("pretrain_")
    request = request_type(hook)
    assert request is not None
    assert request.operation == operation
    assert Kernels.__annotations__[operation] in vars(signatures)


def test_every_kernel_hook_has_a_reference():
    plugin = load_plugin(REFERENCE)
    implemented = {caller.name for caller in register([plugin]).get_hookcallers(plugin.hooks) or ()}
    assert implemented == set(KERNEL_HOOKS)


@pytest.mark.parametrize("hook", KERNEL_HOOKS)
def test_every_kernel_hook_has_a_conformance_class(hook):
    name = "Test" + "".join(word.capitalize() for word in hook.removeprefix("pretrain_").split("_"))
    assert name in suite.__all__
    assert hook.removeprefix("pretrain_") in getattr(suite, name).operations


def test_every_request_type_has_its_hook():
    assert {kind.operation for kind in requests.Request.__subclasses__()} == {
        hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS
    }
