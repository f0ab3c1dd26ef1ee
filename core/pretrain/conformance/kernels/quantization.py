"""Linears with operands in fp8: operands bit by bit, sums within what matrix units lose."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import run_with
from pretrain.conformance.comparison import forward_backward, oracle, random
from pretrain.conformance.examples import grouped_linear, linear
from pretrain.plugins.requests import QUANTIZATIONS, GroupedLinearRequest, LinearRequest

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject

    Asked = LinearRequest | GroupedLinearRequest

SIZE = 256
"""Rows, inputs and outputs: two groups of 128."""

EXPERTS = 3
DTYPES = (torch.float32, torch.bfloat16)  # fp16 has too few bits of exponent for fp8 times its scale
OF_LINEAR = [
    linear(dtype, quantization=kind, shapes=((SIZE, SIZE),), quantized_wgrad=wgrad)
    for kind in QUANTIZATIONS
    for dtype, wgrad in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False))
]
OF_EXPERTS = [
    grouped_linear(dtype, experts=EXPERTS, hidden=SIZE, ffn=SIZE, rows=2 * SIZE, quantization=kind)
    for kind in QUANTIZATIONS
    for dtype in DTYPES
]

SUMS = 2**-10
"""Error of a sum as a part of the sum of its terms' magnitudes. Hopper's matrix units align the terms of a sum and keep
about 14 bits (DeepSeek-V3, arXiv 2412.19437, section 3.3.2); terms of one call may lose 2^-13 each time they are added
up, a few times. Operands with other scales or other elements are off by 2^-5 and more in some entry of the tests."""

REVEALS = {
    "x": ("output", "gradient of weight"),  # weight along in, and the gradient along rows
    "weight": ("output", "gradient of x"),  # x along in, and the gradient along out
    "gradient": ("gradient of x", "gradient of weight"),  # weight along out, and x along rows
}
"""Which results are the operands themselves where one tensor is the identity, which every quantization keeps."""


class TestQuantization:
    """A `LinearFn` or a `GroupedLinearFn` that multiplies in fp8."""

    operations = ("linear", "grouped_linear")

    @run_with([*OF_LINEAR, *OF_EXPERTS])
    def test_operands(self, subject: Subject, kernel: Kernel, asked: Asked) -> None:
        """Bit by bit: times the identity each operand comes out as it went in."""
        built = subject.build(kernel, asked)
        for name, revealed in REVEALS.items():
            tensors = {part: _wide(asked, part, seed) for seed, part in enumerate(REVEALS)}
            tensors[name] = _identity(asked, name)
            actual, expected = (_results(each, asked, tensors, on) for each, on in _both(subject, built, asked))
            for result in revealed:
                found = actual[result].cpu().double()
                wrong = int((found != expected[result]).sum())
                assert not wrong, (
                    f"{wrong} of {found.numel()} entries of an operand are not those of quantization "
                    f"{asked.quantization}: {result}, where {name} is the identity"
                )

    @run_with([*OF_LINEAR, *OF_EXPERTS])
    def test_sums(self, subject: Subject, kernel: Kernel, asked: Asked) -> None:
        """Forward and backward, each entry against the sum of the same operands in float64."""
        tensors = {part: _wide(asked, part, seed) for seed, part in enumerate(REVEALS)}
        built = subject.build(kernel, asked)
        actual, expected = (_results(each, asked, tensors, on) for each, on in _both(subject, built, asked))
        magnitudes = {part: x.abs() for part, x in tensors.items()}
        terms = _results(oracle(asked, main_grad_dtype=None), asked, magnitudes, torch.Tensor.double)
        for name, exact in expected.items():
            error = (actual[name].cpu().double() - exact).abs()
            allowed = SUMS * terms[name] + torch.finfo(asked.dtype).eps * exact.abs()
            assert bool((error <= allowed).all()), (
                f"{name}: error up to {(error / allowed).max():.3g} of what is allowed"
            )

    @run_with([*OF_LINEAR[1::3], *OF_EXPERTS[1::2]])
    def test_shows_what_is_not_finite(self, subject: Subject, kernel: Kernel, asked: Asked) -> None:
        """Infinities and NaN make a whole group NaN: a training that has diverged must be seen."""
        tensors = {part: _wide(asked, part, seed) for seed, part in enumerate(REVEALS)}
        tensors["x"].view(-1, SIZE)[5, 7], tensors["gradient"].view(-1, SIZE)[9, 3] = torch.inf, torch.nan
        found = _results(subject.build(kernel, asked), asked, tensors, lambda x: x.to(subject.device))
        assert not found["output"].view(-1, SIZE)[5].isfinite().any(), "an infinity of x became finite"
        assert not found["gradient of x"].view(-1, SIZE)[9].isfinite().any(), "a NaN of the gradient became finite"


def _shape(asked: Asked, part: str) -> tuple[int, ...]:
    if isinstance(asked, LinearRequest):
        return (SIZE, SIZE) if part == "weight" else (SIZE // 2, 2, SIZE)
    return (EXPERTS, SIZE, SIZE) if part == "weight" else (2 * SIZE, SIZE)  # the second expert has no rows


def _wide(asked: Asked, part: str, seed: int) -> Tensor:
    """Return numbers of many sizes, so that scales differ from group to group, and some elements are zero in fp8."""
    shape = _shape(asked, part)
    sizes = (random(*shape[:-1], 1, dtype=torch.float32, seed=seed) + random(shape[-1], dtype=torch.float32)).exp()
    return (random(*shape, dtype=torch.float32, seed=seed) * sizes).to(asked.dtype)


def _identity(asked: Asked, part: str) -> Tensor:
    shape = _shape(asked, part)
    return torch.eye(SIZE, dtype=asked.dtype).repeat(torch.Size(shape).numel() // SIZE**2, 1).view(shape)


def _both(subject: Subject, built: Any, asked: Asked) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    return (built, lambda x: x.to(subject.device)), (oracle(asked, main_grad_dtype=None), torch.Tensor.double)


def _results(kernel: Any, asked: Asked, tensors: dict[str, Tensor], place: Any) -> dict[str, Tensor]:
    inputs = {"x": tensors["x"], "weight": tensors["weight"]}
    if isinstance(asked, GroupedLinearRequest):
        counts = place(torch.ones(())).new_tensor([SIZE, 0, SIZE], dtype=torch.int64)
        kernel = partial(kernel, counts=counts)
    return forward_backward(kernel, inputs, place, tensors["gradient"], is_watched=False)
