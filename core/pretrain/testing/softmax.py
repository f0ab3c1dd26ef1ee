"""Scale, mask, softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.plugins.requests import Mask
from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, assert_repeats, forward_backward, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.masks import example_mask, mask_with_empty_rows
from pretrain.testing.subject import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject

SHAPES = [(1, 1), (7, 7), (33, 33), (128, 128), (5, 9)]


class TestSoftmax:
    """A `SoftmaxFn`."""

    operations = ("softmax",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("mask", Mask, ids=str)
    @pytest.mark.parametrize(("queries", "keys"), SHAPES)
    def test_agrees_with_float64(
        self, subject: Subject, kernel: Kernel, queries: int, keys: int, mask: Mask, dtype: torch.dtype
    ) -> None:
        """Forward and backward, for every kind of mask."""
        request = examples.softmax(dtype, mask, queries=queries, keys=keys)
        built, expected = subject.build(kernel, request), oracle(request)
        tensor = example_mask(mask, 2, queries, keys)
        assert_agrees(
            lambda scores: built(scores, _on(subject.device, tensor)),
            lambda scores: expected(scores, tensor),
            {"scores": random(2, 4, queries, keys, dtype=dtype)},
            subject.device,
            is_strided=queries == 33,
            floor=0.1,  # one key alone: the gradient is a difference of equal terms
        )

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_scales_16_bits_in_fp32(self, subject: Subject, kernel: Kernel, dtype: torch.dtype) -> None:
        """Scores that would overflow or lose their digits when they are scaled in 16 bits."""
        request = examples.softmax(dtype, scale=4096.0)
        built, expected = subject.build(kernel, request), oracle(request)
        scores = {"scores": random(2, 4, 33, 33, dtype=dtype) * 1e-3 + 20}
        assert_agrees(built, expected, scores, subject.device)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("mask", [Mask.KEY_PADDING, Mask.ARBITRARY], ids=str)
    def test_queries_that_see_no_key_get_zeros(
        self, subject: Subject, kernel: Kernel, mask: Mask, dtype: torch.dtype
    ) -> None:
        """Exactly zero: weights and gradients of fully masked rows, and all masked entries."""
        built = subject.build(kernel, examples.softmax(dtype, mask))
        tensor, _ = mask_with_empty_rows(mask, 2, 33, 33)
        scores = {"scores": random(2, 4, 33, 33, dtype=dtype)}
        results = forward_backward(
            lambda scores: built(scores, tensor.to(subject.device)), scores, lambda x: x.to(subject.device)
        )
        for name, result in results.items():
            masked = result.cpu()[tensor.expand(result.shape)]
            assert not masked.count_nonzero(), f"{name}: {masked.count_nonzero()} masked entries are not zero"

    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel) -> None:
        """The same bits on every call."""
        built = subject.build(kernel, examples.softmax(deterministic=True))
        assert_repeats(built, {"scores": random(2, 4, 33, 33, dtype=torch.float32)}, subject.device)


def _on(device: torch.device, mask: Tensor | None) -> Tensor | None:
    return None if mask is None else mask.to(device)
