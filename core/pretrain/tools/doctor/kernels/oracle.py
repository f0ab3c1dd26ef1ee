"""Reference kernels in float64 on the host, the oracles of all trials."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pretrain.plugins.offer import Decline
    from pretrain.plugins.requests import Request


def oracle(request: Request, **changed: Any) -> Callable[..., Tensor]:
    """Return the reference kernel for the request in float64 on the CPU.

    Args:
        request: of the kernel that is tried.
        changed: fields of the request that the oracle's part has otherwise.
    """
    return reference_on_host(request, torch.float64, **changed)


def reference_on_host(request: Request, dtype: torch.dtype, /, **changed: Any) -> Callable[..., Tensor]:
    """Return the reference kernel for the request in a dtype on the CPU.

    Args:
        request: of the kernel that is tried.
        dtype: of inputs, weights and output.
        changed: fields of the request that are otherwise.
    """
    changed |= {"device_type": "cpu", "dtype": dtype}
    if hasattr(request, "weight_dtype"):
        changed["weight_dtype"] = dtype
    hooks = load_plugin(discovery.REFERENCE).hooks
    answer = getattr(hooks, f"pretrain_{request.operation}")(replace(request, **changed))
    answers: Sequence[Offer | Decline] = answer if isinstance(answer, list) else [answer]
    kernel: Callable[..., Tensor] = next(each for each in answers if isinstance(each, Offer)).build({})
    return kernel
