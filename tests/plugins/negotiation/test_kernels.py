"""The kernels of a run, by operation."""

from __future__ import annotations

import pytest
import torch

from plugins.negotiation.test_choosing import ATTENTION, NORM, OPTIMIZER, SOFTMAX
from pretrain.plugins.host import manager
from pretrain.plugins.host.manager import KERNEL_HOOKS
from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.plugins.negotiation.kernels import Kernels, add_note, negotiate

OPERATIONS = [hook.removeprefix("pretrain_") for hook in KERNEL_HOOKS]
TABLE = KernelTable(backend="fake", provider="fake 1", rows=())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_operation_gives_its_own_kernel(operation):
    kernels = Kernels(table=TABLE, built={name: f"kernel of {name}" for name in OPERATIONS})
    assert getattr(kernels, operation) == f"kernel of {operation}"
    assert operation in kernels


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_was_not_asked_for_is_an_error(operation):
    kernels = Kernels(table=TABLE, built={})
    assert operation not in kernels
    with pytest.raises(AttributeError, match=f"no kernel was asked for {operation}"):
        getattr(kernels, operation)


pytestmark = pytest.mark.usefixtures("reference")

KERNELS = """
from functools import partial
from pretrain.plugins.signatures import OptimizerKernels

def fail(*arguments):
    return missing()

def missing():
    raise RuntimeError("no beads left")

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("no beads left")

class Attention:
    def __call__(self, *arguments):
        raise RuntimeError("no beads left")

class Adam(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("no beads left")

@hookimpl
def pretrain_norm():
    return Offer(name="beads", build=lambda built: lambda x: Backward.apply(x), provider="libbeads 3")

@hookimpl
def pretrain_softmax():
    return Offer(name="sliding", build=lambda built: partial(fail, 1))

@hookimpl
def pretrain_attention():
    return Offer(name="rows", build=lambda built: Attention())

@hookimpl
def pretrain_optimizer():
    return Offer(name="counted", build=lambda built: OptimizerKernels(adam=Adam, gradient_norm=lambda tensors: 1 / 0))
"""


@pytest.fixture
def kernels(site):
    site.backend("fake", KERNELS)
    return negotiate(manager.load("fake"), [NORM, SOFTMAX, ATTENTION, OPTIMIZER], {}, "allow")


def notes(kernels, call):
    with pytest.raises((RuntimeError, ZeroDivisionError)) as error:
        call()
    add_note(error.value, kernels)
    return getattr(error.value, "__notes__", [])


@pytest.mark.parametrize(
    ("call", "kernel"),
    [
        (lambda kernels: kernels.softmax(None), "'sliding' for softmax (pretrain-fake 1.0)"),
        (lambda kernels: kernels.attention(None, None, None), "'rows' for attention (pretrain-fake 1.0)"),
        (lambda kernels: kernels.optimizer.gradient_norm([]), "'counted' for optimizer (pretrain-fake 1.0)"),
        (
            lambda kernels: kernels.optimizer.adam([torch.ones(1)], lr=1).step(),
            "'counted' for optimizer (pretrain-fake 1.0)",
        ),
    ],
)
def test_the_kernel_in_whose_code_it_was_raised(kernels, call, kernel):
    assert notes(kernels, lambda: call(kernels)) == [f"Raised in the kernel {kernel}."]


def test_a_backward_pass_is_known_by_its_module(kernels):
    def call():
        kernels.norm(torch.ones(3, requires_grad=True)).sum().backward()

    (note,) = notes(kernels, call)
    assert note.startswith("Raised in one of the kernels ")
    assert "'beads' for norm (pretrain-fake 1.0 (libbeads 3))" in note


def test_an_error_elsewhere_has_no_note(kernels):
    assert notes(kernels, lambda: 1 / 0) == []
