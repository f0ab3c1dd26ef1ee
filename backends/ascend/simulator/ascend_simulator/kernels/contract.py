"""Documented requirements of an operator for a call. A device might refuse, crash or give wrong results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32)


class ContractError(RuntimeError):
    """A call that the documentation of the operator forbids."""


def require(condition: bool, operator: str, what: str) -> None:
    """Raise ContractError unless the condition holds; `what` says what was given and what is allowed."""
    if not condition:
        message = f"{operator}: {what}"
        raise ContractError(message)


def require_dtype(operator: str, name: str, tensor: Tensor, allowed: tuple[torch.dtype, ...] = FLOATS) -> None:
    """Raise ContractError unless the tensor is of an allowed dtype."""
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
    require(tensor.dtype in allowed, operator, f"{name} is {tensor.dtype}; only {names}")


def require_one_dtype(operator: str, **tensors: Tensor) -> None:
    """Raise ContractError unless all tensors have the same dtype."""
    given = ", ".join(f"{name} {tensor.dtype}" for name, tensor in tensors.items())
    require(len({tensor.dtype for tensor in tensors.values()}) == 1, operator, f"{given}; only one dtype for all")


def require_second_generation(operator: str) -> None:
    """Raise ContractError on the 910A family."""
    require(not torch.ops.ascend_simulator.first_generation(), operator, "not on the first generation of chips (910A)")


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether a shape can be broadcast to another."""
    aligned = (1,) * (len(to) - len(shape)) + tuple(shape)
    return len(aligned) == len(to) and all(size in {1, wanted} for size, wanted in zip(aligned, to, strict=True))
