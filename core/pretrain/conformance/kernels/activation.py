"""Bias and activation of the MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.conformance.cases import Case, cases, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, oracle
from pretrain.conformance.example_calls import Sizes, example_call
from pretrain.conformance.examples import DTYPES, activation

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import ActivationRequest

KINDS = ["gelu", "gelu_tanh", "swiglu"]
TOKENS = {48: (1, 1), 33: (7, 2), 64: (33, 2), 4096: (3, 1), 24576: (2, 1)}
"""Features -> sequence and micro batch: odd ones, tensors that are not contiguous (33), and those of the models."""
SMALL = (48, 33, 64)


class TestActivation:
    """An `ActivationFn`."""

    operations = ("activation",)

    @run_with(
        [
            *cases(
                *(
                    activation(dtype, kind, features=features, has_bias=has_bias)
                    for features in SMALL
                    for kind in KINDS
                    for has_bias in (True, False)
                    for dtype in DTYPES
                )
            ),
            *(
                Case(tuple(activation(dtype, kind, features=features) for dtype in DTYPES[1:] + DTYPES[:1]), True)
                for features in (4096, 24576)
                for kind in KINDS
            ),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: ActivationRequest) -> None:
        """Forward and backward, from -10 to 10; the two forms of GELU differ by 5e-4, which fp32 distinguishes."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*kernels, _inputs(asked), subject.device, is_strided=asked.features == 64)

    @run_with(
        Case(tuple(replace(activation(dtype, features=n), deterministic=True) for n in (64, 4096))) for dtype in DTYPES
    )
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: ActivationRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(subject.build(kernel, asked), oracle(asked), _inputs(asked), subject.device)


def _inputs(asked: ActivationRequest) -> dict[str, Tensor]:
    tokens, batch = TOKENS[asked.features]
    inputs = example_call(asked, Sizes(tokens=tokens, batch=batch)).inputs
    inputs["x"].view(-1)[:2] = torch.tensor([-10.0, 10.0])
    return inputs
