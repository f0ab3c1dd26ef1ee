"""Layer norm and RMS norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, assert_repeats, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.subject import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject

KINDS = ["LayerNorm", "RMSNorm"]
SHAPES = [(1, 1, 48), (7, 2, 48), (33, 3, 100), (5, 1, 1023)]


class TestNorm:
    """A `NormFn`."""

    operations = ("norm",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    def test_agrees_with_float64(
        self, subject: Subject, kernel: Kernel, shape: tuple[int, ...], kind: str, dtype: torch.dtype
    ) -> None:
        """Forward and backward: input, weight and bias."""
        request = examples.norm(dtype, kind, hidden=shape[-1])
        kernels = subject.build(kernel, request), oracle(request)
        assert_agrees(*kernels, _inputs(shape, kind, dtype), subject.device, is_strided=shape[0] == 33)

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    def test_takes_weights_in_fp32(self, subject: Subject, kernel: Kernel, dtype: torch.dtype, kind: str) -> None:
        """The output has the dtype of the input."""
        request = examples.norm(dtype, kind, weight_dtype=torch.float32)
        kernels = subject.build(kernel, request), oracle(request)
        inputs = _inputs((7, 2, 48), kind, dtype)
        assert_agrees(*kernels, {name: x if name == "x" else x.float() for name, x in inputs.items()}, subject.device)

    @pytest.mark.parametrize("kind", KINDS)
    def test_adds_epsilon(self, subject: Subject, kernel: Kernel, kind: str) -> None:
        """Rows whose variance is smaller than epsilon, and a row of zeros."""
        request = examples.norm(kind=kind)
        kernels = subject.build(kernel, request), oracle(request)
        inputs = _inputs((7, 2, 48), kind, torch.float32)
        inputs["x"] = inputs["x"] * 1e-3
        inputs["x"][0] = 0
        assert_agrees(*kernels, inputs, subject.device)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
    @pytest.mark.parametrize("kind", KINDS)
    def test_accumulates_16_bits_in_fp32(self, subject: Subject, kernel: Kernel, kind: str, dtype: torch.dtype) -> None:
        """Rows whose squares overflow fp16."""
        request = examples.norm(dtype, kind, hidden=1024)
        kernels = subject.build(kernel, request), oracle(request)
        inputs = _inputs((2, 1, 1024), kind, dtype)
        inputs["x"] = inputs["x"] * 256 + 32
        assert_agrees(*kernels, inputs, subject.device)

    @pytest.mark.parametrize("kind", KINDS)
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, kind: str) -> None:
        """The same bits on every call."""
        built = subject.build(kernel, examples.norm(kind=kind, deterministic=True))
        assert_repeats(built, _inputs((33, 3, 48), kind, torch.float32), subject.device)


def _inputs(shape: tuple[int, ...], kind: str, dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = {"x": random(*shape, dtype=dtype), "weight": random(shape[-1], dtype=dtype, seed=1) + 1}
    return inputs | ({"bias": random(shape[-1], dtype=dtype, seed=2)} if kind == "LayerNorm" else {})
