"""Bias and activation of the MLP, residual + dropout(x + bias), and rotary position embedding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, forward_backward, oracle, random
from pretrain.conformance.example_calls import Sizes, example_call
from pretrain.conformance.examples import DTYPES, activation, bias_dropout_add, rotary
from pretrain.conformance.kernels.dropout import assert_dropout_rate
from pretrain.conformance.tensor_error import assert_near

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.example_calls import ExampleCall
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import ActivationRequest, BiasDropoutAddRequest, RotaryRequest

KINDS = ["gelu", "gelu_tanh", "swiglu"]
FEATURES = {48: (1, 1), 33: (7, 2), 64: (33, 2), 4096: (3, 1), 24576: (2, 1)}
"""Features -> sequence and micro batch: odd ones, tensors that are not contiguous (33), and those of the models."""
SMALL = (48, 33, 64)


class TestActivation:
    """An `ActivationFn`."""

    operations = ("activation",)

    @run_with(
        [
            *(
                activation(dtype, kind, features=features, has_bias=has_bias)
                for features in SMALL
                for kind in KINDS
                for has_bias in (True, False)
                for dtype in DTYPES
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
        assert_agrees(*kernels, _activation_inputs(asked), subject.device, is_strided=asked.features == 64)

    @run_with(
        Case(tuple(activation(dtype, "swiglu", features=n, has_bias=False, role="expert") for n in (64, 33)))
        for dtype in DTYPES
    )
    def test_takes_rows_of_experts(self, subject: Subject, kernel: Kernel, asked: ActivationRequest) -> None:
        """[rows, 2 features], also none."""
        kernels = subject.build(kernel, asked), oracle(asked)
        for rows in (7, 0):
            inputs = {"x": random(rows, 2 * asked.features, dtype=asked.dtype)}
            assert_agrees(*kernels, inputs, subject.device)

    @run_with(Case(tuple(activation(dtype, features=n, deterministic=True) for n in (64, 4096))) for dtype in DTYPES)
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: ActivationRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(subject.build(kernel, asked), oracle(asked), _activation_inputs(asked), subject.device)


def _activation_inputs(asked: ActivationRequest) -> dict[str, Tensor]:
    tokens, batch = FEATURES[asked.features]
    inputs = example_call(asked, Sizes(tokens=tokens, batch=batch)).inputs
    inputs["x"].view(-1)[:2] = torch.tensor([-10.0, 10.0])
    return inputs


HIDDEN = {48: (1, 1), 33: (7, 2), 64: (33, 2), 768: (3, 2), 6144: (3, 1)}
"""Hidden size -> sequence and micro batch: odd ones, tensors that are not contiguous (64), and those of the models."""


def _requests(**asked: Any) -> list[BiasDropoutAddRequest]:
    return [bias_dropout_add(dtype, hidden=hidden, **asked) for hidden in HIDDEN for dtype in DTYPES]


class TestBiasDropoutAdd:
    """A `BiasDropoutAddFn`."""

    operations = ("bias_dropout_add",)

    @run_with(r for p in (0.0, 0.5) for bias in (True, False) for r in _requests(dropout=p, has_bias=bias))
    def test_agrees_with_float64_outside_training(
        self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest
    ) -> None:
        """Forward and backward; training=False drops nothing."""
        kernels = partial(subject.build(kernel, asked), training=False), partial(oracle(asked), training=False)
        call, is_strided = _dropout_call(asked), asked.hidden_size == 64
        assert_agrees(*kernels, call.inputs, subject.device, constants=call.constants, is_strided=is_strided)

    @run_with(_requests())
    def test_agrees_with_float64_without_dropout(
        self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest
    ) -> None:
        """Forward and backward while training."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*kernels, _dropout_call(asked).inputs, subject.device, is_strided=asked.hidden_size == 64)

    @run_with(
        (
            bias_dropout_add(dtype, hidden=hidden, dropout=dropout, has_bias=has_bias)
            for hidden, dropout, has_bias in ((64, 0.1, True), (64, 0.5, False), (6144, 0.5, True))
            for dtype in DTYPES
        )
    )
    def test_dropout(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """Entries are dropped at the requested rate, the others scaled up; the backward pass uses the same mask."""
        call, built, dropout = _dropout_call(asked), subject.build(kernel, asked), asked.dropout
        inputs = call.inputs
        inputs["residual"] = torch.zeros_like(inputs["residual"])  # what is added is then not rounded with it
        inputs["x"] = inputs["x"].abs() + 8  # and what is not dropped is not zero
        results = forward_backward(built, inputs, lambda x: x.to(subject.device), constants=call.constants)
        added, bias = results["output"].cpu().double(), inputs.get("bias", torch.zeros(()))
        whole = (inputs["x"].double() + bias.double()) / (1 - dropout)
        kept = added != 0
        assert_near(added, whole.where(kept, 0), asked.dtype, "what is added")
        assert_dropout_rate(dropout, kept)
        rows = kept.flatten(0, 1)
        if dropout == 0.5:  # two of 64 entries agree by chance once in 10^19
            assert torch.unique(rows, dim=0).shape[0] == rows.shape[0], "two tokens drop the same entries"
        grad_output = random(*added.shape, dtype=asked.dtype, seed=7).double()
        expected = (grad_output / (1 - dropout)).where(kept, 0)
        assert_near(results["gradient of x"], expected, asked.dtype, "gradient of x under dropout")
        assert_near(results["gradient of residual"], grad_output, asked.dtype, "gradient of residual under dropout")
        if asked.has_bias:
            assert_near(
                results["gradient of bias"], expected.sum((0, 1)), asked.dtype, "gradient of bias under dropout"
            )

    @run_with(bias_dropout_add(dtype, hidden=64, dropout=p, deterministic=True) for dtype in DTYPES for p in (0.0, 0.5))
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """Calls without dropout are bitwise reproducible and agree with the oracle."""
        kernels = partial(subject.build(kernel, asked), training=False), partial(oracle(asked), training=False)
        assert_repeats(*kernels, _dropout_call(asked).inputs, subject.device)

    @run_with(bias_dropout_add(dtype, hidden=64, dropout=p) for dtype in DTYPES for p in (0.0, 0.5))
    def test_backward_needs_no_output(self, subject: Subject, kernel: Kernel, asked: BiasDropoutAddRequest) -> None:
        """A pipeline stage frees its output after sending it: gradients do not depend on the output's content."""
        built = partial(subject.build(kernel, asked), training=False)
        leaves = [x.to(subject.device).requires_grad_() for x in _dropout_call(asked).inputs.values()]
        results = []
        for is_freed in (False, True):
            output = built(**dict(zip(("x", "residual", "bias"), (x.clone() for x in leaves), strict=True)))
            if is_freed:
                output.data.fill_(torch.nan)
            results.append(torch.autograd.grad(output, leaves, torch.ones_like(output)))
        for kept, freed in zip(*results, strict=True):
            assert torch.equal(kept, freed), "the backward pass reads the output"


def _dropout_call(asked: BiasDropoutAddRequest) -> ExampleCall:
    tokens, batch = HIDDEN[asked.hidden_size]
    return example_call(asked, Sizes(tokens=tokens, batch=batch))


SIZES = [(16, 16, 4), (8, 16, 4), (2, 16, 4), (64, 64, 2), (24, 96, 2), (128, 128, 2), (256, 256, 1)]
"""Rotated dimensions, of how many, heads."""

ROTATIONS = [{"rotary_size": turned, "size": size, "heads": heads} for turned, size, heads in (SIZES[1], SIZES[5])]


class TestRotary:
    """A `RotaryFn`."""

    operations = ("rotary",)

    @run_with(
        [
            *(
                rotary(dtype, rotary_size=turned, size=size, heads=heads, length=length)
                for turned, size, heads in SIZES
                for length in (1, 7, 33)
                for dtype in DTYPES
            ),
            Case(tuple(rotary(dtype, rotary_size=128, size=128, heads=1, length=8192) for dtype in DTYPES), True),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Forward and backward, of all dimensions and of the first ones only."""
        call, is_strided = _rotary_call(asked), asked.seq_length == 33
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*kernels, call.inputs, subject.device, constants=call.constants, is_strided=is_strided)

    @run_with(Case(tuple(rotary(dtype, **shape) for shape in ROTATIONS)) for dtype in DTYPES)
    def test_takes_a_part_of_one_projection(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Queries or keys that are views of the fused projection; fewer heads of keys than of queries."""
        built, expected, size = subject.build(kernel, asked), oracle(asked), asked.head_size
        for heads in (asked.heads, 1):
            projection = random(33, 2, heads, 3 * size, dtype=asked.dtype)
            assert_agrees(
                lambda projection, **turned: built(projection[..., size : 2 * size], **turned),
                lambda projection, **turned: expected(projection[..., size : 2 * size], **turned),
                {"projection": projection},
                subject.device,
                constants=_rotary_call(asked).constants,
            )

    @run_with(Case(tuple(rotary(dtype, **shape, deterministic=True) for shape in ROTATIONS)) for dtype in DTYPES)
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        call, kernels = _rotary_call(asked), (subject.build(kernel, asked), oracle(asked))
        assert_repeats(*kernels, call.inputs, subject.device, constants=call.constants)


def _rotary_call(asked: RotaryRequest) -> ExampleCall:
    return example_call(asked, Sizes(tokens=asked.seq_length, batch=1 if asked.seq_length > 2048 else 2))
