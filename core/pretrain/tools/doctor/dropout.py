"""Checks a kernel's dropout at the run's shapes: finite, at the requested rate, another one in each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.requests import Request
    from pretrain.tools.doctor.trials import Trial

    Function = Callable[..., Tensor]

DEVIATIONS = 6
"""Standard deviations by which a rate may be off: a right kernel is once in 500 million calls."""

COARSE = 1 / 128
"""Error of the rate of a right attention: flash-attn compares 8 random bits with it (dropout.h of its csrc)."""

VARIANCE = 0.25
"""Part by which the variance of an attention's dropout may be off besides: its weights and outputs are rounded."""

ROUNDED = 16
"""Factor by which dropout must vary an output more than rounding does, for its variance to be judged."""

SEEN = 0.5
"""Rounding of an output, as a part of one key's weight, up to which the loss of the key is seen in it."""

CERTAIN = 40
"""Dropped entries from which on two calls cannot drop the same ones by chance."""


def dropout_fault(trial: Trial, kernel: Function, device: torch.device, request: Request) -> str:
    """Return what is wrong with calls that drop entries; "" where nothing is, or the kernel drops none.

    Args:
        trial: of the kernel, without dropout.
        kernel: called with the trial's arguments while training.
        device: of this rank.
        request: of the kernel.
    """
    probability = getattr(request, "dropout", 0.0)
    if not probability:
        return ""
    call = trial.call.placed(lambda x: x.to(device))
    given: dict[str, Any] = {name: x.detach().requires_grad_() for name, x in call.inputs.items()}
    constants = {**call.constants, "training": True}
    output = kernel(**given, **constants)
    grads = torch.autograd.grad(output, list(given.values()), torch.ones_like(output))
    if not all(bool(x.isfinite().all()) for x in (output, *grads)):
        return f"not finite with dropout {probability}"
    del output, grads
    judge = _attention_fault if request.operation == "attention" else _addition_fault
    return judge(kernel, given, constants, probability)


def _addition_fault(kernel: Function, given: dict[str, Tensor], constants: dict[str, Any], probability: float) -> str:
    """Judge residual + dropout(x + bias) where x is 1 and all else 0: zeros are what was dropped."""
    alike = {name: torch.zeros_like(x) for name, x in given.items()}
    alike["x"] = torch.ones_like(given["x"]).requires_grad_()
    first, again = (kernel(**alike, **constants) for _ in range(2))
    (grad,) = torch.autograd.grad(first, [alike["x"]], torch.ones_like(first))
    dropped = first == 0
    rate, count = dropped.double().mean().item(), dropped.numel()
    if abs(rate - probability) > DEVIATIONS * (probability * (1 - probability) / count) ** 0.5:
        return f"{rate:.4f} of the entries are dropped, not {probability}"
    if not torch.equal(dropped, grad == 0):
        return "the gradient is dropped at other entries than the output"
    return _repeated(first, again, probability * count)


def _attention_fault(kernel: Function, given: dict[str, Tensor], constants: dict[str, Any], probability: float) -> str:
    """Judge attention where queries are 0 and values 1: each of k visible keys has the weight 1/k or is dropped.

    The output of a query is then 1 on average, with the variance p / (1 - p) / k.
    """
    alike = given | {"query": torch.zeros_like(given["query"]), "value": torch.ones_like(given["value"])}
    length, batch, heads, size = given["query"].shape
    with torch.no_grad():
        first, again = (kernel(**alike, **constants) for _ in range(2))
    visible = _visible(constants["mask"], length, batch, heads)
    found = first.detach().cpu().view(length, batch, heads, size)[..., 0].double() - 1
    epsilon = torch.finfo(first.dtype).eps
    variance = probability / (1 - probability) / visible
    shift = found.mean().item()
    if abs(shift) > DEVIATIONS * variance.sum().sqrt().item() / found.numel() + COARSE + 4 * epsilon:
        return f"with dropout {probability} the weights' sum is {1 + shift:.3f} on average, not 1"
    clear = variance > ROUNDED * epsilon**2
    if clear.any():
        ratio = (found.square() / variance)[clear].mean().item()
        excess = (1 - 6 * probability * (1 - probability)) / (visible[clear] * probability * (1 - probability))
        spread = (2 + excess).clamp(min=0).sum().sqrt().item() / int(clear.sum())
        allowed = VARIANCE + COARSE / probability + DEVIATIONS * spread
        if abs(ratio - 1) > allowed:
            return f"weights vary {ratio:.2f} times as much as with dropout {probability}; {allowed:.2f} off is allowed"
    seen = visible[visible * epsilon < SEEN]
    return _repeated(first, again, probability * seen.sum().item())


def _visible(mask: Tensor | None, length: int, batch: int, heads: int) -> Tensor:
    """Return the number of keys that each query sees, float64 [s, b, n] on the host."""
    of_causal = torch.arange(1, length + 1)[:, None, None]
    seen = of_causal if mask is None else (~mask).sum(-1).cpu().permute(2, 0, 1)
    return seen.expand(length, batch, heads).double()


def _repeated(first: Tensor, again: Tensor, dropped: float) -> str:
    alike = dropped > CERTAIN and torch.equal(first, again)
    return "two calls drop the same entries" if alike else ""
