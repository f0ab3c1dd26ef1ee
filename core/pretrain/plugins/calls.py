"""Calls of kernels as the model makes them: by position, whatever a kernel calls its parameters."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pretrain.plugins import signatures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TYPES: Mapping[str, type] = {
    "activation": signatures.ActivationFn,
    "attention": signatures.AttentionFn,
    "bias_dropout_add": signatures.BiasDropoutAddFn,
    "cross_entropy": signatures.CrossEntropyFn,
    "linear": signatures.LinearFn,
    "norm": signatures.NormFn,
    "rotary": signatures.RotaryFn,
    "softmax": signatures.SoftmaxFn,
}
SIGNATURES: Mapping[str, inspect.Signature] = {
    operation: inspect.signature(vars(kind)["__call__"]) for operation, kind in _TYPES.items()
}
"""Operation -> its signature, with `self`; of those whose kernel is one function of tensors."""


def by_position(operation: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that takes the names of the operation's signature, and calls the kernel as the model does.

    All parameters are passed, those left out with their default, and by name only what stands after `*`.
    """
    signature = SIGNATURES[operation]

    def call(*given: Any, **named: Any) -> Any:
        bound = signature.bind(kernel, *given, **named)
        bound.apply_defaults()
        return kernel(*bound.args[1:], **bound.kwargs)

    return call
