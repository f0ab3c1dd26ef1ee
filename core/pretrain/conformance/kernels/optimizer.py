"""Adam, AdamW and the gradient norm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import (
    NoSynchronization,
    adam_in_float64,
    adam_state,
    adam_step_in_float64,
    random,
)
from pretrain.conformance.examples import DTYPES, optimizer
from pretrain.conformance.tensor_error import assert_near
from pretrain.reference.muon import orthogonalize as newton_schulz

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import OptimizerRequest, Request
    from pretrain.plugins.signatures import GradientNormFn

SHAPES = [(3, 5), (7,), (33, 17), (1,)]
SETTINGS: dict[str, Any] = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


ITERATED = [((3, 24, 40), 5), ((2, 40, 24), 5), ((1, 7, 7), 3), ((4, 128, 512), 5)]
"""Shapes of matrices, and steps."""
IN_FP32 = 1e-6
"""Error of a state in fp32, as a part of its largest entry: eight units of 2^-23, for a product and a sum."""
LARGEST_ERROR = 1e-4
"""Of an entry of fp32 matrices whose largest singular values are about 1."""

NAMES = [optimizer(name) for name in ("adam", "adamw")]
ANY = [Case((optimizer("adamw"), optimizer("adam")))]
BF16 = torch.bfloat16
ROUNDED: list[Case | Request] = [
    *(optimizer(name, exp_avg_dtype=BF16, exp_avg_sq_dtype=BF16) for name in ("adam", "adamw")),
    Case((optimizer("adamw", exp_avg_dtype=BF16), optimizer("adam", exp_avg_dtype=BF16))),
    Case((optimizer("adamw", exp_avg_sq_dtype=BF16), optimizer("adam", exp_avg_sq_dtype=BF16))),
]
SEEN = {**SETTINGS, "lr": 1.0}
"""Updates are as large as the weights: an update by a state that was rounded before is 2^-9 off, which is seen."""


class TestOptimizer:
    """`OptimizerKernels`."""

    operations = ("optimizer",)

    @run_with(NAMES)
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """Five steps of many tensors; a parameter without a gradient stays as it is."""
        name, adam = asked.name, subject.build(kernel, asked).adam
        parameters = [*_parameters(subject), torch.nn.Parameter(torch.ones(3, device=subject.device))]
        stepping = adam(parameters, **SETTINGS, adam_w_mode=name == "adamw")
        for step in range(1, 6):
            _step(stepping, parameters[:-1], step)
        for number, parameter in enumerate(parameters[:-1]):
            gradients = (_gradient(number, step) for step in range(1, 6))
            expected = adam_in_float64(_start(number), gradients, **SETTINGS, adam_w_mode=name == "adamw")
            assert_near(parameter, expected, torch.float32, f"parameter {number}")
        assert torch.equal(parameters[-1], torch.ones_like(parameters[-1])), "a parameter without a gradient changed"

    @run_with(ROUNDED)
    def test_rounds_its_state(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """Five steps, each in float64 from the kernel's own state: weights as in fp32, the state rounded to nearest."""
        adam = subject.build(kernel, asked).adam
        parameters = _parameters(subject)
        stepping = adam(parameters, **SEEN, adam_w_mode=asked.name == "adamw")
        for step in range(1, 6):
            before = []
            for parameter in parameters:
                state = adam_state(stepping, parameter, asked.state_dtypes)
                before.append([each.cpu().clone() for each in (parameter.detach(), *state)])
            _step(stepping, parameters, step)
            for number, (parameter, (start, mean, square)) in enumerate(zip(parameters, before, strict=True)):
                gradient = _gradient(number, step)
                weight, *states = adam_step_in_float64(
                    start, mean, square, gradient, step=step, **SEEN, adam_w_mode=asked.name == "adamw"
                )
                assert_near(parameter, weight, torch.float32, f"parameter {number} after step {step}")
                kept = adam_state(stepping, parameter, asked.state_dtypes)
                for (name, dtype), ours, exact in zip(asked.state_dtypes.items(), kept, states, strict=True):
                    _check_rounded(ours, exact, dtype, f"{name} {number} after step {step}")

    @run_with([*ANY, *ROUNDED])
    def test_is_shaped_like_apex(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """`step` is a number in the parameter group, the state exp_avg and exp_avg_sq and nothing else."""
        adam = subject.build(kernel, asked).adam
        parameters = _parameters(subject)
        stepping = adam([{"params": parameters[:2]}, {"params": parameters[2:]}], **SETTINGS)
        for step in (1, 2):
            _step(stepping, parameters, step)
        assert [group["step"] for group in stepping.param_groups] == [2, 2]
        for state in stepping.state.values():
            assert {name: tensor.dtype for name, tensor in state.items()} == asked.state_dtypes

    @run_with([*ANY, *ROUNDED])
    def test_continues_from_a_checkpoint(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """Two steps, saved and loaded into a new optimizer, and two more are four steps, bit for bit."""
        adam = subject.build(kernel, asked).adam
        straight, parameters = _parameters(subject), _parameters(subject)
        whole, first = adam(straight, **SETTINGS), adam(parameters, **SETTINGS)
        for step in range(1, 5):
            _step(whole, straight, step)
        for step in (1, 2):
            _step(first, parameters, step)
        second = adam(parameters, **SETTINGS)
        second.load_state_dict(first.state_dict())
        for step in (3, 4):
            _step(second, parameters, step)
        for ours, theirs in zip(parameters, straight, strict=True):
            assert torch.equal(ours, theirs), "a resumed run differs from an uninterrupted one"
            states = (adam_state(*each, asked.state_dtypes) for each in ((second, ours), (whole, theirs)))
            for one, other in zip(*states, strict=True):
                assert one.dtype == other.dtype, f"a state was loaded as {one.dtype}"
                assert torch.equal(one, other), "the state of a resumed run differs from an uninterrupted one's"

    @run_with(ANY)
    def test_orthogonalizes(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """The iteration of `OrthogonalizeFn` in float64: wide and tall matrices, small and large ones, zeros."""
        orthogonalize = subject.build(kernel, asked).orthogonalize
        if orthogonalize is None:
            pytest.skip(f"{kernel} brings no iteration: plain torch takes its place")
        for shape, steps in ITERATED:
            matrices = random(*shape, dtype=torch.float32)
            if shape[0] > 2:
                matrices[0], matrices[1], matrices[2] = matrices[0] * 1e-9, 0, matrices[2] * 1e4
            given = matrices.to(subject.device)
            with NoSynchronization():
                result = orthogonalize(given, steps)
            assert (result.dtype, result.shape, result.device.type) == (
                torch.float32,
                matrices.shape,
                subject.device.type,
            )
            # A small singular value grows up to 3.4445 times a step, and the rounding beside it.
            error = float((result.cpu().double() - newton_schulz(matrices.double(), steps)).abs().max())
            assert error <= LARGEST_ERROR, f"{shape}, {steps} steps: off by {error:.1e}"
            assert torch.equal(given.cpu(), matrices), "the matrices were overwritten"

    @run_with(ANY)
    def test_gradient_norm(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """fp32 scalar on the device; of many tensors, of a long one, of none."""
        norm = subject.build(kernel, asked).gradient_norm
        self._check_norm(subject, norm, [random(*shape, dtype=torch.float32) for shape in [*SHAPES, (3_000_000,)]])
        nothing = norm([])
        assert (nothing.item(), nothing.dtype, nothing.device.type) == (0.0, torch.float32, subject.device.type)

    @run_with(ANY)
    def test_gradient_norm_of_half_precision(self, subject: Subject, kernel: Kernel, asked: OptimizerRequest) -> None:
        """Accumulated in fp32, within one tensor and over all: squares that overflow fp16, and many small ones."""
        norm = subject.build(kernel, asked).gradient_norm
        for dtype in DTYPES[1:]:
            if not subject.plugins.backend.supports(dtype):
                continue
            sizes = [1, 7, 4096, 100_003]
            self._check_norm(subject, norm, [random(size, dtype=dtype) * 300 for size in sizes])
            self._check_norm(subject, norm, [random(size, dtype=dtype) for size in sizes])
            self._check_norm(subject, norm, [torch.ones(number % 5 + 1, dtype=dtype) for number in range(1000)])

    def _check_norm(self, subject: Subject, norm: GradientNormFn, tensors: list[Tensor]) -> None:
        expected = torch.cat([tensor.double().flatten() for tensor in tensors]).norm()
        placed = [tensor.to(subject.device) for tensor in tensors]
        with NoSynchronization():
            result = norm(placed)
        assert (result.dtype, result.shape, result.device.type) == (torch.float32, (), subject.device.type)
        assert_near(result, expected, torch.float32, f"norm of tensors in {tensors[0].dtype}")
        for before, after in zip(tensors, placed, strict=True):
            assert torch.equal(before, after.cpu()), "the norm overwrote a tensor"


def _check_rounded(kept: Tensor, exact: Tensor, dtype: torch.dtype, what: str) -> None:
    """Compare with the exact value: half a unit in the last place of bf16, and what fp32 adds; or fp32 alone."""
    assert kept.dtype == dtype, f"{what}: kept in {kept.dtype}, asked for {dtype}"
    if dtype is torch.float32:
        assert_near(kept, exact, dtype, what)
        return
    half = torch.ldexp(torch.ones_like(exact), torch.frexp(exact).exponent - 9)  # 8 bits of the number, frexp < 1
    excess = float(((kept.cpu().double() - exact).abs() - half).max())
    allowed = IN_FP32 * float(exact.abs().max())
    assert excess <= allowed, f"{what}: {excess:.3g} more than rounding to nearest, allowed {allowed:.3g}"


def _parameters(subject: Subject) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(_start(number).to(subject.device)) for number in range(len(SHAPES))]


def _start(number: int) -> Tensor:
    return random(*SHAPES[number], dtype=torch.float32, seed=number)


def _gradient(number: int, step: int) -> Tensor:
    return random(*SHAPES[number], dtype=torch.float32, seed=100 * step + number)


def _step(stepping: Any, parameters: list[torch.nn.Parameter], step: int) -> None:
    for number, parameter in enumerate(parameters):
        parameter.grad = _gradient(number, step).to(parameter.device)
    with NoSynchronization():
        stepping.step()
