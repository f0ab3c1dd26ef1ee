"""Scale, mask, softmax."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, forward_backward, oracle, random
from pretrain.conformance.example_calls import documents, example_mask, mask_with_empty_rows
from pretrain.conformance.examples import DTYPES, softmax
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import SoftmaxRequest

MASKS = tuple(mask for mask in Mask if mask is not Mask.DOCUMENTS)
"""Documents are of attention alone."""

SHAPES = [(1, 1, 4), (7, 7, 4), (33, 33, 4), (128, 128, 4), (5, 9, 4), (96, 96, 8), (64, 256, 1), (288, 288, 1)]
"""Queries, keys, heads."""

ANY: list[dict[str, Any]] = [
    {"queries": 33, "keys": 33},
    {"queries": 64, "keys": 64, "heads": 8},
    {"queries": 128, "keys": 128, "heads": 4},
]
"""Alternatives, of which a kernel must take one, for tests that do not depend on the shape."""

WIDE: dict[str, Any] = {"queries": 64, "keys": 2112, "heads": 1}
SQUARE: dict[str, Any] = {"queries": 2112, "keys": 2112, "heads": 1}
WIDER: dict[str, Any] = {"queries": 64, "keys": 8192, "heads": 1}
LARGER: dict[str, Any] = {"queries": 8192, "keys": 8192, "heads": 1}


def _each(mask: Mask = Mask.CAUSAL, shapes: list[dict[str, Any]] = ANY, **asked: Any) -> list[Case]:
    """Return a case for every dtype, of the first shape that the kernel takes."""
    return [Case(tuple(softmax(dtype, mask, **shape, **asked) for shape in shapes)) for dtype in DTYPES]


def _long(mask: Mask, *shapes: dict[str, Any]) -> Case:
    """Return a case over 2048 keys, of the first shape that the kernel takes."""
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    return Case(tuple(softmax(dtype, mask, **shape) for shape in shapes for dtype in dtypes), is_costly=True)


class TestSoftmax:
    """A `SoftmaxFn`."""

    operations = ("softmax",)

    @run_with(
        [
            *(
                softmax(dtype, mask, queries=queries, keys=keys, heads=heads)
                for queries, keys, heads in SHAPES
                for mask in MASKS
                for dtype in DTYPES
            ),
            *(_long(mask, WIDE) for mask in (Mask.CAUSAL, Mask.ARBITRARY)),
            _long(Mask.CAUSAL, SQUARE),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Forward and backward, for every kind of mask; query i sees keys up to i + (keys - queries)."""
        mask = example_mask(asked.mask, _batch(asked), asked.queries, asked.keys)
        self._compare(subject, kernel, asked, mask, is_strided=asked.queries in (33, 96))

    @run_with([_long(Mask.CAUSAL, WIDER, LARGER)])
    def test_agrees_over_4096_keys(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Forward alone; the last 64 rows against float64, which see every key."""
        scores = _scores(asked)
        with torch.no_grad():
            weights = subject.build(kernel, asked)(scores.to(subject.device), None)
            expected = oracle(replace(asked, queries=64))(scores[:, :, -64:].double(), None)
        assert_near(weights[:, :, -64:], expected, asked.dtype, "weights")

    @run_with(
        case for scale in (0.125, 8.0) for mask in (Mask.CAUSAL, Mask.ARBITRARY) for case in _each(mask, scale=scale)
    )
    def test_applies_the_requested_scale(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """The scores are multiplied before the softmax, and the gradient after it."""
        mask = example_mask(asked.mask, 2, asked.queries, asked.keys)
        self._compare(subject, kernel, asked, mask)

    @run_with(_each(scale=4096.0))
    def test_scales_half_precision_in_fp32(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Scores that would overflow or lose digits when they are scaled in fp16 or bf16."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*kernels, {"scores": _scores(asked) * 1e-3 + 20}, subject.device)

    @run_with(_each(Mask.ARBITRARY))
    def test_keeps_documents_apart(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Several documents per row, of different lengths in each row of the batch, do not attend to each other."""
        self._compare(subject, kernel, asked, documents(2, asked.queries))

    @run_with([*_each(Mask.KEY_PADDING), *_each(Mask.ARBITRARY)])
    def test_queries_that_see_no_key_get_zeros(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Exactly zero: weights and gradients of fully masked rows, and all masked entries."""
        mask, _ = mask_with_empty_rows(asked.mask, 2, asked.queries, asked.keys)
        placed, built = {"mask": mask.to(subject.device)}, subject.build(kernel, asked)
        results = forward_backward(built, {"scores": _scores(asked)}, lambda x: x.to(subject.device), constants=placed)
        for name, result in results.items():
            masked = result.cpu()[mask.expand(result.shape)]
            assert not masked.count_nonzero(), f"{name}: {masked.count_nonzero()} masked entries are not zero"

    @run_with(_each(deterministic=True))
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(subject.build(kernel, asked), oracle(asked), {"scores": _scores(asked)}, subject.device)

    def _compare(
        self, subject: Subject, kernel: Kernel, asked: SoftmaxRequest, mask: Any, *, is_strided: bool = False
    ) -> None:
        assert_agrees(
            subject.build(kernel, asked),
            oracle(asked),
            {"scores": _scores(asked)},
            subject.device,
            constants={"mask": mask},
            is_strided=is_strided,
            floor=0.1,  # one key alone: the gradient is a difference of equal terms
        )


def _batch(asked: SoftmaxRequest) -> int:
    return 1 if asked.keys > 2048 else 2


def _scores(asked: SoftmaxRequest) -> Tensor:
    return random(_batch(asked), asked.heads, asked.queries, asked.keys, dtype=asked.dtype)
