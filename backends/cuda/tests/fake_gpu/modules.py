"""Replacements where a fake parameter cannot act like a real one, and where values would be computed or read."""

from __future__ import annotations

import torch
from torch import nn


def install() -> None:
    """Let modules change dtype and device, leave weights as they are made, and answer what a sum would show."""
    nn.Module._apply = _apply
    from pretrain.model import build

    if not callable(build.initialize):
        raise TypeError("pretrain.model.build.initialize")
    build.initialize = lambda *_args, **_kwargs: None
    from pretrain.reference import accumulation

    # It computes a sum to see what the device can, once in a process: on CUDA the first way from torch 2.11 on.
    if not callable(accumulation._is_exact):
        raise TypeError("pretrain.reference.accumulation._is_exact")
    accumulation._is_exact = lambda way, *_args: way is accumulation.fused_add


def _apply(self, function, recurse=True):
    """Give a module new parameters; torch swaps fake ones, which fails when anything refers to them weakly."""
    changed = {}
    for module in self.modules() if recurse else [self]:
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = changed.setdefault(id(parameter), _changed(parameter, function))
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = function(buffer)
    return self


def _changed(parameter, function):
    with torch.no_grad():
        values = function(parameter.detach())
    if values.dtype == parameter.dtype and values.device == parameter.device:
        return parameter
    new = nn.Parameter(values, requires_grad=parameter.requires_grad)
    for name, value in vars(parameter).items():
        if name not in vars(new):
            setattr(new, name, value)
    return new


def agree_on_everything() -> None:
    """Let ZeRO-3 take its rank for like all others: it compares numbers that were sent to rank 0 and back."""
    from deepspeed.runtime.zero import partitioned_param_coordinator

    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda ints: None
