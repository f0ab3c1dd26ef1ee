"""Kernels of torch_npu's own operators, written for CPU tensors and registered for the NPU."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

SIMULATOR = torch.ops.ascend_simulator

_workspaces: list[torch.Tensor] = []
"""Of the kernel that runs now."""


def take_workspace(size: int) -> None:
    """Allocate bytes on the device until the kernel's results are there, as torch_npu does without a task queue."""
    _workspaces.append(torch.empty(size, dtype=torch.uint8, device="npu"))


@functools.cache
def _library(namespace: str) -> torch.library.Library:
    return torch.library.Library(namespace, "IMPL", "PrivateUse1")


def register(operator: str, kernel: Callable[..., Any]) -> None:
    """Register a kernel for an operator ("namespace::name") in place of torch_npu's."""
    namespace, name = operator.split("::")
    if not hasattr(getattr(torch.ops, namespace), name):
        return  # of another release
    _library(namespace).impl(name, kernel, "PrivateUse1", allow_override=True)


def kernel(*operators: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of CPU tensors for operators: it gets host views, and its results go to the device."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for operator in operators:
            register(operator, functools.partial(_call, operator, function))
        return function

    return decorate


def _call(operator: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    # torch's pytree would do it too, but its closures keep the tensors until a garbage collection.
    given = [each for value in (*arguments, *options.values()) for each in (value if _is_list(value) else [value])]
    tensors = [value for value in given if isinstance(value, torch.Tensor)]
    device = _one_device(operator, tensors)
    for tensor in tensors:
        SIMULATOR.check_type(operator, tensor.dtype)
    arguments, options = map(_host, arguments), {name: _host(value) for name, value in options.items()}
    try:
        with torch.no_grad():
            results = function(*arguments, **options)
        if isinstance(results, tuple | list):
            return type(results)(_to_device(result, device) for result in results)
        return _to_device(results, device)
    finally:
        _workspaces.clear()


def _one_device(operator: str, tensors: list[torch.Tensor]) -> torch.device:
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices)))
        message = f"Expected all tensors to be on the same device, but found {names}! (when calling {operator})"
        raise RuntimeError(message)
    return devices.pop()


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], torch.Tensor)


def _host(value: Any) -> Any:
    if _is_list(value):
        return [SIMULATOR.host(tensor) for tensor in value]
    return SIMULATOR.host(value) if isinstance(value, torch.Tensor) else value


def _to_device(value: Any, device: torch.device) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    SIMULATOR.saturate_(value)
    return value.to(device)
