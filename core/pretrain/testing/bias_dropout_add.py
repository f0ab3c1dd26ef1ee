"""residual + dropout(x + bias)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, forward_backward, random
from pretrain.testing.dropping import assert_dropout_rate
from pretrain.testing.examples import DTYPES
from pretrain.testing.subject import oracle
from pretrain.testing.tolerance import assert_near

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject


class TestBiasDropoutAdd:
    """A `BiasDropoutAddFn`."""

    operations = ("bias_dropout_add",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("has_bias", [True, False], ids=["bias", "no bias"])
    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    @pytest.mark.parametrize("shape", [(1, 1, 48), (7, 2, 33), (33, 2, 64)], ids=str)
    def test_agrees_with_float64_outside_training(
        self,
        subject: Subject,
        kernel: Kernel,
        shape: tuple[int, ...],
        dropout: float,
        has_bias: bool,
        dtype: torch.dtype,
    ) -> None:
        """Forward and backward; training=False drops nothing, whatever the dropout is."""
        request = examples.bias_dropout_add(dtype, hidden=shape[-1], dropout=dropout, has_bias=has_bias)
        absent = {} if has_bias else {"bias": None}
        built = partial(subject.build(kernel, request), training=False, **absent)
        expected = partial(oracle(request), training=False, **absent)
        assert_agrees(built, expected, _inputs(shape, dtype, has_bias), subject.device, is_strided=shape[0] == 33)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_agrees_with_float64_without_dropout(self, subject: Subject, kernel: Kernel, dtype: torch.dtype) -> None:
        """Forward and backward while training."""
        request = examples.bias_dropout_add(dtype)
        kernels = subject.build(kernel, request), oracle(request)
        assert_agrees(*kernels, _inputs((7, 2, 48), dtype, True), subject.device)

    @pytest.mark.parametrize("dropout", [0.1, 0.5])
    def test_dropout(self, subject: Subject, kernel: Kernel, dropout: float) -> None:
        """Entries are dropped at the rate asked for, the others scaled up; the backward pass drops the same."""
        built = subject.build(kernel, examples.bias_dropout_add(hidden=64, dropout=dropout))
        inputs = _inputs((33, 2, 64), torch.float32, True)
        results = forward_backward(built, inputs, lambda x: x.to(subject.device))
        added = results["output"].cpu().double() - inputs["residual"].double()
        whole = (inputs["x"] + inputs["bias"]).double() / (1 - dropout)
        kept = added.abs() > 1e-6
        assert_near(added, whole.where(kept, 0), torch.float32, "what is added")
        assert_dropout_rate(dropout, kept)
        grad_output = random(*added.shape, dtype=torch.float32, seed=7).double()
        expected = (grad_output / (1 - dropout)).where(kept, 0)
        assert_near(results["gradient of x"], expected, torch.float32, "gradient of x under dropout")
        assert_near(results["gradient of bias"], expected.sum((0, 1)), torch.float32, "gradient of bias under dropout")


def _inputs(shape: tuple[int, ...], dtype: torch.dtype, has_bias: bool) -> dict[str, Tensor]:
    inputs = {"x": random(*shape, dtype=dtype), "residual": random(*shape, dtype=dtype, seed=2)}
    return inputs | ({"bias": random(shape[-1], dtype=dtype, seed=1)} if has_bias else {})
