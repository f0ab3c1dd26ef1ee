"""Attention without projections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.plugins.requests import Mask
from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, assert_repeats, forward_backward, random
from pretrain.testing.dropping import assert_dropout_rate
from pretrain.testing.examples import DTYPES
from pretrain.testing.masks import example_mask, mask_with_empty_rows
from pretrain.testing.subject import oracle
from pretrain.testing.tolerance import assert_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.plugins.requests import AttentionRequest
    from pretrain.testing.subject import Kernel, Subject

SHAPES = [(1, 4, 4), (7, 1, 1), (33, 4, 2), (33, 4, 1), (150, 2, 2)]
"""Sequence length, query heads, key/value heads."""


class TestAttention:
    """An `AttentionFn`."""

    operations = ("attention",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("mask", Mask, ids=str)
    @pytest.mark.parametrize(("length", "heads", "groups"), SHAPES)
    def test_agrees_with_float64(
        self,
        subject: Subject,
        kernel: Kernel,
        length: int,
        heads: int,
        groups: int,
        mask: Mask,
        dtype: torch.dtype,
    ) -> None:
        """Forward and backward, for every kind of mask, with and without shared keys."""
        request = examples.attention(dtype, mask, length=length, heads=heads, groups=groups)
        tensor = example_mask(mask, 2, length, length)
        kernels = subject.build(kernel, request), oracle(request)
        # One token alone: the gradients of query and key are differences of equal terms.
        assert_agrees(*_calls(*kernels, tensor, subject.device), _inputs(request), subject.device, floor=1.0)

    def test_takes_tensors_that_are_not_contiguous(self, subject: Subject, kernel: Kernel) -> None:
        """As parts of one projection are not, and more than those: no dimension but the first is dense."""
        request = examples.attention()
        kernels = subject.build(kernel, request), oracle(request)
        assert_agrees(*_calls(*kernels, None, subject.device), _inputs(request), subject.device, is_strided=True)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_undoes_the_score_divisor(self, subject: Subject, kernel: Kernel, dtype: torch.dtype) -> None:
        """Scores divided before they are stored count in full: the divisor changes no result."""
        request = examples.attention(dtype, divisor=8.0)
        kernels = subject.build(kernel, request), oracle(examples.attention(dtype))
        assert_agrees(*_calls(*kernels, None, subject.device), _inputs(request), subject.device)

    @pytest.mark.parametrize("mask", [Mask.KEY_PADDING, Mask.ARBITRARY], ids=str)
    def test_queries_that_see_no_key_get_zeros(self, subject: Subject, kernel: Kernel, mask: Mask) -> None:
        """Their context is exactly zero, they get no gradient and give none; the others are as ever."""
        request = examples.attention(mask=mask)
        tensor, empty = mask_with_empty_rows(mask, 2, 33, 33)
        kernels = subject.build(kernel, request), oracle(request)
        results = assert_agrees(*_calls(*kernels, tensor, subject.device), _inputs(request), subject.device)
        for name in ("output", "gradient of query"):
            rows = results[name].cpu().transpose(0, 1)[empty]
            assert not rows.count_nonzero(), f"{name}: {rows.count_nonzero()} entries of empty rows are not zero"

    @pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL], ids=str)
    def test_dropout(self, subject: Subject, kernel: Kernel, mask: Mask) -> None:
        """Weights are dropped at the rate asked for, the others scaled up; the backward pass drops the same."""
        length, dropout = 48, 0.25
        request = examples.attention(mask=mask, length=length, size=length, dropout=dropout)
        built = subject.build(kernel, request)
        identity = torch.eye(length).view(length, 1, 1, length).expand(length, 2, 4, length)
        inputs = _inputs(request) | {"value": identity}  # the context is then the weights themselves
        results = forward_backward(built, inputs, lambda x: x.to(subject.device))
        weights = results["output"].cpu().view(length, 2, 4, length)
        undropped = _per_head(oracle(examples.attention(mask=mask, length=length, size=length)), inputs)
        kept = weights != 0
        assert_near(weights, (undropped / (1 - dropout)).where(kept, 0), torch.float32, "weights that are kept")
        assert_dropout_rate(dropout, kept[undropped > 0])
        grad_output = random(*results["output"].shape, dtype=torch.float32, seed=7).view(weights.shape)
        expected = torch.einsum("sbnk,sbnd->kbnd", weights.double(), grad_output.double())
        assert_near(results["gradient of value"], expected, torch.float32, "gradient of value under dropout")

    def test_no_dropout_outside_training(self, subject: Subject, kernel: Kernel) -> None:
        """training=False: every weight counts."""
        request = examples.attention(dropout=0.5)
        built, expected = subject.build(kernel, request), oracle(examples.attention())
        inputs = _inputs(request)
        assert_agrees(lambda **x: built(**x, training=False), expected, inputs, subject.device)

    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel) -> None:
        """The same bits on every call."""
        request = examples.attention(deterministic=True, groups=2)
        assert_repeats(subject.build(kernel, request), _inputs(request), subject.device)


def _inputs(request: AttentionRequest) -> dict[str, Tensor]:
    heads = {"query": request.heads, "key": request.query_groups, "value": request.query_groups}
    sizes = (request.seq_length, request.micro_batch_size)
    return {
        name: random(*sizes, number, request.head_size, dtype=request.dtype, seed=seed)
        for seed, (name, number) in enumerate(heads.items())
    }


def _calls(
    kernel: Any, oracle: Any, mask: Tensor | None, device: torch.device
) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    placed = None if mask is None else mask.to(device)
    return lambda **x: kernel(**x, mask=placed), lambda **x: oracle(**x, mask=mask)


def _per_head(attention: Any, inputs: dict[str, Tensor]) -> Tensor:
    length, batch, heads, size = inputs["query"].shape
    context: Tensor = attention(**{name: x.double() for name, x in inputs.items()})
    return context.view(length, batch, heads, size)
