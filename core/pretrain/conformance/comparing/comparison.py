"""Comparison of a kernel with its oracle, forward and backward."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch

from pretrain.conformance.comparing.synchronization import NoSynchronization
from pretrain.conformance.comparing.tolerance import assert_near

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    Function = Callable[..., Tensor]

OVERWRITABLE = frozenset({"logits"})
"""Inputs that a kernel may overwrite: those of `CrossEntropyFn` only, by its signature."""


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normal numbers on the CPU, rounded to the dtype; the same for the same seed and shape."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def strided(x: Tensor) -> Tensor:
    """Return the same values with the strides of a transposed tensor: no dimension but the first is dense."""
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def forward_backward(
    function: Function,
    inputs: Mapping[str, Tensor],
    place: Callable[[Tensor], Tensor],
    grad_output: Tensor | None = None,
    *,
    is_watched: bool = True,
) -> dict[str, Tensor]:
    """Return the output and the gradient of every input, for one random gradient of the output.

    Args:
        function: called with the inputs by name.
        inputs: gradients are computed for all of them.
        place: puts a tensor onto the device, with the strides that it is to have there.
        grad_output: random where None.
        is_watched: whether it is an error to make the host wait. The watch intercepts torch.distributed's calls, which
            fails with a process group that is written in Python.

    Raises:
        AssertionError: the function overwrote an input, or the gradient of its output, or made the host wait.
    """
    leaves = {name: place(x).detach().requires_grad_() for name, x in inputs.items()}
    given = {name: leaf.clone() for name, leaf in leaves.items()}
    watch = NoSynchronization if is_watched else nullcontext
    with watch():
        output = function(**given)
    if grad_output is None:
        grad_output = random(*output.shape, dtype=output.dtype, seed=7)
    kept, placed = output.detach().clone(), place(grad_output).to(output.dtype)
    with watch():
        grads = torch.autograd.grad(output, list(leaves.values()), placed)
    _assert_not_overwritten(given, leaves)
    _assert_not_overwritten({"gradient of the output": placed}, {"gradient of the output": place(grad_output)})
    return {"output": kept} | {f"gradient of {name}": grad for name, grad in zip(leaves, grads, strict=True)}


def _assert_not_overwritten(given: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    written = [name for name, x in given.items() if name not in OVERWRITABLE and not _is_same(x, before[name])]
    assert not written, f"overwritten by the kernel: {', '.join(written)}; only logits may be"


def _is_same(x: Tensor, before: Tensor) -> bool:
    return torch.allclose(x, before.to(x.dtype), rtol=0, atol=0, equal_nan=True)


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
    actual = forward_backward(kernel, inputs, lambda x: (strided(x) if is_strided else x).to(device))
    output = actual["output"]
    assert output.dtype == (output_dtype or first.dtype), f"output is {output.dtype}"
    assert output.device.type == device.type, f"output is on {output.device}"
    grad_output = random(*output.shape, dtype=output.dtype, seed=7)
    expected = forward_backward(oracle, inputs, torch.Tensor.double, grad_output)
    for name, value in expected.items():
        assert_near(actual[name], value, first.dtype, name, floor=floor)
    for name, x in inputs.items():
        assert actual[f"gradient of {name}"].dtype == x.dtype, f"gradient of {name} is {actual[name].dtype}"
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
