"""Requirements that kernels have of the chip: one wording for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.offer import Absent
from pretrain_ascend import devices
from pretrain_ascend.devices import Family

if TYPE_CHECKING:
    from pretrain.plugins.requests import Request

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def unsupported_reason(request: Request, earliest: Family = Family.FIRST) -> str:
    """Return the reason that no kernel for chips from this family on serves the request (chip or dtype), or ""."""
    family = devices.family_of(request.device_name)
    if family is None:
        return Absent(f"{_nameless(request)}; only chips of known families")
    if family < earliest:
        return Absent(f"chip family {family}; only {earliest} and later")
    return unsupported_dtype(request.dtype, family)


def unsupported_dtype(dtype: torch.dtype, family: Family) -> str:
    """Return the reason that a dtype does not fit the family, or ""."""
    if dtype not in DTYPES:
        return f"dtype {_name(dtype)}; only {', '.join(_name(each) for each in DTYPES)}"
    if dtype is torch.bfloat16 and family < Family.A2:
        return f"dtype bfloat16 on chip family {family}; only float32, float16"
    return ""


def unsupported_matmul(request: Request) -> str:
    """Return the reason that the family computes matmuls of the dtype in another one, or ""."""
    family = devices.family_of(request.device_name)
    if family is None or request.dtype is not torch.float32 or devices.multiplies_fp32(family):
        return ""
    return f"dtype float32 on chip family {family}, which multiplies it in float16; only float16"


def one_dtype(dtype: torch.dtype, weight_dtype: torch.dtype) -> str:
    """Return the reason that weights of another dtype do not fit, or ""."""
    if weight_dtype is dtype:
        return ""
    return f"weights in {_name(weight_dtype)} for {_name(dtype)}; only both in one dtype"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _nameless(request: Request) -> str:
    if request.device_name:
        return f"the chip family of '{request.device_name}' is not known"
    return "there is no device here, and none was named"
