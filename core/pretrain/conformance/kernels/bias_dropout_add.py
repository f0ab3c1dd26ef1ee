"""residual + dropout(x + bias)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, cases, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, forward_backward, oracle, random
from pretrain.conformance.example_calls import Sizes, example_call
from pretrain.conformance.examples import DTYPES, bias_dropout_add
from pretrain.conformance.kernels.dropout import assert_dropout_rate
from pretrain.conformance.tensor_error import assert_near

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import BiasDropoutAddRequest

TOKENS = {48: (1, 1), 33: (7, 2), 64: (33, 2), 768: (3, 2), 6144: (3, 1)}
"""Hidden size -> sequence and micro batch: odd ones, tensors that are not contiguous (64), and those of the models."""


def _requests(**asked: Any) -> list[BiasDropoutAddRequest]:
    return [bias_dropout_add(dtype, hidden=hidden, **asked) for hidden in TOKENS for dtype in DTYPES]


class TestBiasDropoutAdd:
    """A `BiasDropoutAddFn`."""

    operations = ("bias_dropout_add",)

    @run_with(cases(*(r for p in (0.0, 0.5) for bias in (True, False) for r in _requests(dropout=p, has_bias=bias))))
    def test_agrees_with_float64_outside_training(
        self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest
    ) -> None:
        """Forward and backward; training=False drops nothing."""
        built = partial(subject.build(kernel, asked), training=False, **_absent(asked))
        expected = partial(oracle(asked), training=False, **_absent(asked))
        assert_agrees(built, expected, _inputs(asked), subject.device, is_strided=asked.hidden_size == 64)

    @run_with(cases(*_requests()))
    def test_agrees_with_float64_without_dropout(
        self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest
    ) -> None:
        """Forward and backward while training."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*kernels, _inputs(asked), subject.device, is_strided=asked.hidden_size == 64)

    @run_with(
        cases(
            *(
                bias_dropout_add(dtype, hidden=hidden, dropout=dropout, has_bias=has_bias)
                for hidden, dropout, has_bias in ((64, 0.1, True), (64, 0.5, False), (6144, 0.5, True))
                for dtype in DTYPES
            )
        )
    )
    def test_dropout(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """Entries are dropped at the requested rate, the others scaled up; the backward pass uses the same mask."""
        built = partial(subject.build(kernel, asked), **_absent(asked))
        inputs, dropout = _inputs(asked), asked.dropout
        inputs["residual"] = torch.zeros_like(inputs["residual"])  # what is added is then not rounded with it
        inputs["x"] = inputs["x"].abs() + 8  # and what is not dropped is not zero
        results = forward_backward(built, inputs, lambda x: x.to(subject.device))
        added, bias = results["output"].cpu().double(), inputs.get("bias", torch.zeros(()))
        whole = (inputs["x"].double() + bias.double()) / (1 - dropout)
        kept = added != 0
        assert_near(added, whole.where(kept, 0), asked.dtype, "what is added")
        assert_dropout_rate(dropout, kept)
        rows = kept.flatten(0, 1)
        if dropout == 0.5:  # two of 64 entries agree by chance once in 10^19
            assert torch.unique(rows, dim=0).shape[0] == rows.shape[0], "two tokens drop the same"
        grad_output = random(*added.shape, dtype=asked.dtype, seed=7).double()
        expected = (grad_output / (1 - dropout)).where(kept, 0)
        assert_near(results["gradient of x"], expected, asked.dtype, "gradient of x under dropout")
        assert_near(results["gradient of residual"], grad_output, asked.dtype, "gradient of residual under dropout")
        if asked.has_bias:
            assert_near(
                results["gradient of bias"], expected.sum((0, 1)), asked.dtype, "gradient of bias under dropout"
            )

    @run_with(
        Case((replace(bias_dropout_add(dtype, hidden=64, dropout=p), deterministic=True),))
        for dtype in DTYPES
        for p in (0.0, 0.5)
    )
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """Calls without dropout are bitwise reproducible and agree with the oracle."""
        built = partial(subject.build(kernel, asked), training=False)
        expected = partial(oracle(asked), training=False)
        assert_repeats(built, expected, _inputs(asked), subject.device)

    @run_with(cases(*(bias_dropout_add(dtype, hidden=64, dropout=p) for dtype in DTYPES for p in (0.0, 0.5))))
    def test_backward_needs_no_output(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """A pipeline stage frees its output after sending it: gradients do not depend on the output's content."""
        built = partial(subject.build(kernel, asked), training=False)
        leaves = [x.to(subject.device).requires_grad_() for x in _inputs(asked).values()]
        results = []
        for is_freed in (False, True):
            output = built(**dict(zip(("x", "residual", "bias"), (x.clone() for x in leaves), strict=True)))
            if is_freed:
                output.data.fill_(torch.nan)
            results.append(torch.autograd.grad(output, leaves, torch.ones_like(output)))
        for kept, freed in zip(*results, strict=True):
            assert torch.equal(kept, freed), "the backward pass reads the output"


def _inputs(asked: BiasDropoutAddRequest) -> dict[str, Tensor]:
    tokens, batch = TOKENS[asked.hidden_size]
    return example_call(asked, Sizes(tokens=tokens, batch=batch)).inputs


def _absent(asked: BiasDropoutAddRequest) -> dict[str, None]:
    return {} if asked.has_bias else {"bias": None}
