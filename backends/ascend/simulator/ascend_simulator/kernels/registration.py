"""Kernels of torch_npu's own operators, written for CPU tensors and registered for the NPU."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

SIMULATOR = torch.ops.ascend_simulator


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "IMPL", "PrivateUse1")


def register(operator: str, kernel: Callable[..., Any]) -> None:
    """Register a kernel for an operator ("namespace::name") in place of torch_npu's."""
    namespace, name = operator.split("::")
    _library(namespace).impl(name, kernel, "PrivateUse1", allow_override=True)


def kernel(*operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of CPU tensors for operators: it gets host views, and its results go to the device."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            register(operator, functools.partial(_call, operator, function))
        return function

    return decorate


def _call(operator: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    tensors = [leaf for leaf in tree_leaves((arguments, options)) if isinstance(leaf, torch.Tensor)]
    device = _one_device(operator, tensors)
    for tensor in tensors:
        SIMULATOR.check_type(operator, tensor.dtype)
    arguments, options = tree_map(_host, (arguments, options))
    with torch.no_grad():
        results = function(*arguments, **options)
    return tree_map(lambda result: _to_device(result, device), results)


def _one_device(operator: str, tensors: list[torch.Tensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        message = f"Expected all tensors to be on the same device, but found {names}! (when calling {operator})"
        raise RuntimeError(message)
    return devices.pop()


def _host(value: Any) -> Any:
    return SIMULATOR.host(value) if isinstance(value, torch.Tensor) else value


def _to_device(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    SIMULATOR.saturate_(value)
    return value.to(device)
