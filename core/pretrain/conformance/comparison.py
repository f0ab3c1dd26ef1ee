"""Compares a kernel with the reference kernel in float64; the kit, `pretrain doctor` and `pretrain align` use it."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.compared_part import EVERYTHING
from pretrain.conformance.synchronization import NoSynchronization
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.offer import Decline, Offer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch import Tensor

    from pretrain.conformance.compared_part import ComparedPart
    from pretrain.plugins.requests import Request

    Function = Callable[..., Tensor]

OVERWRITABLE = frozenset({"logits"})
"""Inputs that a kernel may overwrite: those of `CrossEntropyFn` only, by its signature."""

BLOCK = 1_000_003
"""Random numbers that are drawn for a tensor: a prime, so that no two rows of a longer tensor begin alike."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normal numbers on the CPU, rounded to the dtype; the same for the same seed and shape.

    `BLOCK` are drawn, and repeated in a larger tensor, which would take seconds.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(shape))
    count = math.prod(shape)
    block = torch.randn(min(count, BLOCK), generator=generator).to(dtype)
    return block.repeat(-(-count // BLOCK))[:count].view(shape) if count else block.view(shape)


def strided(x: Tensor) -> Tensor:
    """Return the same values with the strides of a transposed tensor: no dimension but the first is dense."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def oracle(request: Request, dtype: torch.dtype = torch.float64, /, **changed: Any) -> Any:
    """Return the reference kernel for a request on the CPU, in float64 or another dtype, with fields changed."""
    changed |= {"device_type": "cpu", "dtype": dtype}
    if hasattr(request, "weight_dtype"):
        changed["weight_dtype"] = dtype
    hooks = load_plugin(discovery.REFERENCE).hooks
    answer = getattr(hooks, f"pretrain_{request.operation}")(replace(request, **changed))
    answers: Sequence[Offer | Decline] = [answer] if isinstance(answer, Offer | Decline) else answer
    return next(answer for answer in answers if isinstance(answer, Offer)).build({})


def adam_in_float64(
    start: Tensor,
    gradients: Iterable[Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    adam_w_mode: bool,
) -> Tensor:
    """Return a parameter after a step for each gradient, by the arguments that the kernel's class has.

    Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1; decay as Loshchilov and Hutter 2019 (arXiv 1711.05101).
    """
    parameter = start.double()
    mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
    for step, given in enumerate(gradients, 1):
        gradient = given.double() + (0 if adam_w_mode else weight_decay * parameter)
        mean = betas[0] * mean + (1 - betas[0]) * gradient
        square = betas[1] * square + (1 - betas[1]) * gradient**2
        update = mean / (1 - betas[0] ** step) / ((square / (1 - betas[1] ** step)).sqrt() + eps)
        parameter = parameter - lr * (update + (weight_decay * parameter if adam_w_mode else 0))
    return parameter


def forward_backward(
    function: Function,
    inputs: Mapping[str, Tensor],
    place: Callable[[Tensor], Tensor],
    grad_output: Tensor | None = None,
    *,
    constants: Mapping[str, Any] | None = None,
    main_grads: Mapping[str, torch.dtype] | None = None,
    part: ComparedPart = EVERYTHING,
    is_watched: bool = True,
    is_guarded: bool = True,
) -> dict[str, Tensor]:
    """Return the output and the gradient of every input that gets one, for one gradient of the output.

    Args:
        function: called with the inputs and the constants by name.
        inputs: gradients are computed for all of them; without any, the output alone.
        place: puts a tensor onto the device, with the strides that it is to have there.
        grad_output: random where None, and zero outside of the part: gradients of whole weights are then the part's.
        constants: arguments without a gradient, where they are to be.
        main_grads: inputs with a `main_grad` of that dtype, to which the kernel may add the gradient (`LinearRequest`).
        part: of the output, for which a random gradient is made.
        is_watched: whether it is an error to make the host wait. The watch intercepts torch.distributed's calls, which
            fails with a process group that is written in Python.
        is_guarded: whether it is an error to overwrite an input; it takes copies.

    Raises:
        AssertionError: the function overwrote an input, or the gradient of its output, or made the host wait.
    """
    leaves: dict[str, Any] = {name: place(x).detach().requires_grad_() for name, x in inputs.items()}
    for name, dtype in (main_grads or {}).items():
        leaves[name].main_grad = torch.zeros_like(leaves[name], dtype=dtype)
        leaves[name].grad_added_to_main_grad = False
    copied = {name: (is_guarded and name not in (main_grads or ())) or name in OVERWRITABLE for name in leaves}
    given = {name: leaf.clone() if copied[name] else leaf for name, leaf in leaves.items()}
    watch = NoSynchronization if is_watched else nullcontext
    with torch.enable_grad(), watch():
        output = function(**given, **(constants or {}))
    kept = output.detach().clone()
    if not output.requires_grad:
        return {"output": kept}
    if grad_output is None:
        grad_output = part.widen(output, random(*part.narrow("output", kept).shape, dtype=output.dtype, seed=7))
    placed = place(grad_output).to(output.dtype)
    with watch():
        grads = torch.autograd.grad(output, list(leaves.values()), placed, allow_unused=True)
    if is_guarded:
        _assert_not_overwritten(given, leaves)
        _assert_not_overwritten({"gradient of the output": placed}, {"gradient of the output": place(grad_output)})
    found = {name: leaf.main_grad for name, leaf in leaves.items() if getattr(leaf, "grad_added_to_main_grad", False)}
    found = {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None} | found
    return {"output": kept} | {f"gradient of {name}": found[name] for name in leaves if name in found}


def _assert_not_overwritten(given: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    written = [name for name, x in given.items() if name not in OVERWRITABLE and not _is_same(x, before[name])]
    assert not written, f"overwritten by the kernel: {', '.join(written)}; only logits may be"


def _is_same(x: Tensor, before: Tensor) -> bool:
    return torch.allclose(x, before.to(x.dtype), rtol=0, atol=0, equal_nan=True)


def both_results(
    kernel: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    place: Callable[[Tensor], Tensor],
    *,
    part: ComparedPart = EVERYTHING,
    constants: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return what a kernel gives, and of the part what its oracle gives in float64: output and gradients by name.

    Args:
        kernel: called with inputs and constants by name.
        oracle: called with the part of them, in fp64 on the CPU.
        inputs: on the CPU in the kernel's dtype, all with a gradient.
        place: puts a tensor onto the kernel's device.
        part: that the oracle computes too.
        constants: other arguments, tensors among them on the CPU.
        options: of `forward_backward` for the kernel.
    """
    given = dict(constants or {})
    placed = {name: place(x) if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    actual = forward_backward(kernel, inputs, place, constants=placed, part=part, **options)
    output = actual["output"]
    grad_output = random(*part.narrow("output", output).shape, dtype=output.dtype, seed=7)
    expected = forward_backward(
        oracle,
        {name: part.narrow(name, x) for name, x in inputs.items()},
        torch.Tensor.double,
        grad_output,
        constants={name: part.narrow(name, x) for name, x in given.items()},
        is_watched=False,
        is_guarded=False,
    )
    return actual, expected


def assert_agrees(
    kernel: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    is_strided: bool = False,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
) -> dict[str, Tensor]:
    """Fail unless kernel and oracle agree for the inputs.

    Args:
        kernel: called with the inputs by name, on the device.
        oracle: called with the inputs by name, in fp64 on the CPU.
        inputs: on the CPU in the kernel's dtype, all with a gradient. The first decides the tolerance.
        device: where the kernel runs.
        is_strided: inputs and the gradient of the output are not contiguous.
        output_dtype: dtype of the output; that of the first input by default.
        floor: see `assert_near`.

    Returns:
        The kernel's output and gradients.
    """
    first = next(iter(inputs.values()))

    def place(x: Tensor) -> Tensor:
        return (strided(x) if is_strided else x).to(device)

    actual, expected = both_results(kernel, oracle, inputs, place)
    output = actual["output"]
    assert output.dtype == (output_dtype or first.dtype), f"output is {output.dtype}"
    assert output.device.type == device.type, f"output is on {output.device}"
    for name, value in expected.items():
        assert_near(actual.get(name), value, first.dtype, name, floor=floor)
    for name, x in inputs.items():
        grad = actual[f"gradient of {name}"]
        assert grad.dtype == x.dtype, f"gradient of {name} is {grad.dtype}"
    return actual


def assert_repeats(
    function: Function,
    oracle: Function,
    inputs: Mapping[str, Tensor],
    device: torch.device,
    *,
    output_dtype: torch.dtype | None = None,
    floor: float = 0.0,
) -> None:
    """Fail unless two calls give the same bits, forward and backward, under torch's deterministic algorithms.

    A deterministic training enables them too, and kernels that call torch's may rely on it. Values are compared with
    the oracle's as well: a kernel that takes only deterministic requests is tested only here.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        first = assert_agrees(function, oracle, inputs, device, output_dtype=output_dtype, floor=floor)
        second = forward_backward(function, inputs, lambda x: x.to(device))
    finally:
        torch.use_deterministic_algorithms(before)
    different = [name for name, value in first.items() if not torch.equal(value, second[name])]
    assert not different, f"two calls differ in {', '.join(different)}, though the request is deterministic"
