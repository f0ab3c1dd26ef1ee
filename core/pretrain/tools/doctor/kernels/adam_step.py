"""Trial of the optimizer's kernels: two steps of Adam and the gradient norm, against their formulas in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.comparison import TOLERANCE
from pretrain.tools.doctor.kernels.trial import Deviation, random

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.plugins.requests import OptimizerRequest
    from pretrain.plugins.signatures import OptimizerKernels

LARGEST = 2**22
"""Entries of the largest parameter that is tried: 16 MiB."""

STEPS = 2
RATE, SPREAD = 1e-2, 0.02
"""Learning rate and size of the parameters: of near sizes, so that a wrong step is not lost in the parameters."""


def optimizer_deviations(
    request: OptimizerRequest, kernels: OptimizerKernels, shape: tuple[int, int], device: torch.device
) -> Iterator[Deviation]:
    """Step a weight and a bias with the recipe's form of Adam, and compare both and the norm of their gradients.

    Args:
        request: of the kernels.
        kernels: those that the training takes.
        shape: of a weight of the model; cut to `LARGEST` entries.
        device: of this rank.
    """
    shapes = (max(1, min(shape[0], LARGEST // shape[1])), shape[1]), (shape[0],)
    starts = [random(*each, dtype=torch.float32, seed=seed) * SPREAD for seed, each in enumerate(shapes)]
    gradients = [[random(*each, dtype=torch.float32, seed=5 + step) for each in shapes] for step in range(STEPS)]
    parameters = [torch.nn.Parameter(start.to(device, copy=True)) for start in starts]
    is_decoupled = request.name == "adamw"
    adam: Any = kernels.adam  # an apex-shaped class: see `OptimizerKernels`
    stepping = adam(parameters, lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, adam_w_mode=is_decoupled)
    for of_step in gradients:
        for parameter, gradient in zip(parameters, of_step, strict=True):
            parameter.grad = gradient.to(device)
        norm = kernels.gradient_norm([gradient.to(device) for gradient in of_step])
        stepping.step()
    for number, (parameter, name) in enumerate(zip(parameters, ("weight", "bias"), strict=True)):
        expected = _expected(starts[number], [of_step[number] for of_step in gradients], is_decoupled=is_decoupled)
        yield _deviation(f"{name} after {STEPS} steps", parameter, expected)
    squares = torch.stack([gradient.double().square().sum() for gradient in gradients[-1]])
    yield _deviation("gradient norm", norm, squares.sum().sqrt())


def _expected(start: Tensor, gradients: list[Tensor], *, is_decoupled: bool) -> Tensor:
    """Return the parameter after Adam's steps (Kingma and Ba 2015, algorithm 1), or AdamW's (Loshchilov 2019)."""
    x = start.double()
    mean, square = torch.zeros_like(x), torch.zeros_like(x)
    for step, given in enumerate(gradients, 1):
        gradient = given.double() + (0 if is_decoupled else 0.1 * x)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.95 * square + 0.05 * gradient.square()
        update = mean / (1 - 0.9**step) / ((square / (1 - 0.95**step)).sqrt() + 1e-8)
        x = x - RATE * (update + (0.1 * x if is_decoupled else 0))
    return x


def _deviation(name: str, actual: Tensor, expected: Tensor) -> Deviation:
    found = actual.detach().cpu().double()
    error = (found - expected).abs().max() / expected.abs().max() if bool(found.isfinite().all()) else torch.inf
    return Deviation(name, float(error), TOLERANCE[torch.float32])
