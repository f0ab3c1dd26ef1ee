"""Limits common to the flash kernels of all libraries: one wording for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pretrain.plugins.offer import Absent
from pretrain.plugins.requests import Mask
from pretrain_cuda.devices import AMPERE, architecture_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.plugins.requests import AttentionRequest
    from pretrain_cuda.devices import Architecture

    Limits = Callable[[AttentionRequest, Architecture], str]

HALF = (torch.float16, torch.bfloat16)


DENSE = (Mask.NONE, Mask.CAUSAL)
"""Masks of a flash kernel that has nothing for documents."""

ANY_LENGTH = (*DENSE, Mask.DOCUMENTS)
"""Masks of a flash kernel that takes sequences of different lengths, or is called for each document."""


def unsupported_reason(request: AttentionRequest, limits: Limits, masks: Sequence[Mask] = DENSE) -> str:
    """Return the reason that a flash kernel for tensor cores declines a request, or ""; its own limits come last."""
    if request.mask not in masks:
        return f"mask {request.mask}; only {', '.join(masks[:-1])} and {masks[-1]}"
    if request.dtype not in HALF:
        return f"dtype {request.dtype}; only fp16 and bf16"
    architecture = architecture_of(request.device_name)
    return unknown(request) if architecture is None else limits(request, architecture)


def unknown(request: AttentionRequest) -> str:
    """Return the reason of an unknown device."""
    if request.device_name:
        return Absent(f"the compute capability of '{request.device_name}' is not known")
    return Absent("there is no device here, and none was named")


def no_other_keys(request: AttentionRequest) -> str:
    """Return the reason of a kernel whose causal mask begins at the first key, where the contract's ends at the last.

    For as many keys as queries these are the same.
    """
    return f"{request.keys} keys for {request.seq_length} queries; only as many" if request.keys else ""


def no_window(request: AttentionRequest) -> str:
    """Return the reason of a kernel that has no sliding window."""
    return f"window {request.window}; it has none" if request.window is not None else ""


def before_ampere(architecture: Architecture) -> str:
    """Return the reason of a kernel that needs Ampere's instructions."""
    return Absent(f"compute capability {architecture}; only {AMPERE} and later" if architecture < AMPERE else "")


def over_head_size(request: AttentionRequest, largest: int) -> str:
    """Return the reason of a kernel whose heads have at most `largest` entries."""
    return f"head size {request.head_size}; at most {largest}" if request.head_size > largest else ""


def not_a_multiple_of(alignment: int, request: AttentionRequest) -> str:
    """Return the reason of a kernel that reads several entries of a head at a time."""
    return f"head size {request.head_size}; only multiples of {alignment}" if request.head_size % alignment else ""


def has_little_shared_memory(architecture: Architecture) -> bool:
    """Return whether a multiprocessor has 99 KiB instead of 163 or more: GeForce, and datacenter cards like them."""
    return architecture.major == 12 or architecture in {(8, 6), (8, 9)}
