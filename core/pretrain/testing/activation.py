"""Bias and activation of the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.subject import oracle

if TYPE_CHECKING:
    from pretrain.testing.subject import Kernel, Subject


class TestActivation:
    """An `ActivationFn`."""

    operations = ("activation",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
    @pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "swiglu"])
    @pytest.mark.parametrize("shape", [(1, 1, 48), (7, 2, 33), (33, 2, 64)], ids=str)
    def test_agrees_with_float64(
        self,
        subject: Subject,
        kernel: Kernel,
        shape: tuple[int, ...],
        kind: str,
        has_bias: bool,
        dtype: torch.dtype,
    ) -> None:
        """Forward and backward, from -10 to 10; the two forms of GELU differ by 5e-4 and are told apart in fp32."""
        request = examples.activation(dtype, kind, features=shape[-1], has_bias=has_bias)
        kernels = subject.build(kernel, request), oracle(request)
        width = shape[-1] * 2 if kind == "swiglu" else shape[-1]
        inputs = {"x": random(*shape[:-1], width, dtype=dtype) * 2}
        inputs["x"].view(-1)[:2] = torch.tensor([-10.0, 10.0])
        if has_bias:
            inputs["bias"] = random(width, dtype=dtype, seed=1)
        assert_agrees(*kernels, inputs, subject.device, is_strided=shape[0] == 33)
