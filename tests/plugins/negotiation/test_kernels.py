"""The kernels of a run, by operation."""

from __future__ import annotations

import dataclasses

import pytest

from pretrain.plugins.host.manager import HOOKS
from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.plugins.negotiation.kernels import Kernels

OPERATIONS = [hook.removeprefix("pretrain_") for hook in HOOKS if hook != "pretrain_backend"]
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


def test_no_kernel_is_exchanged_later():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Kernels(table=TABLE, built={}).built = {}
