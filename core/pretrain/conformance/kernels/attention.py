"""Attention without projections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pretrain.conformance.cases import cases, run_with
from pretrain.conformance.comparing.comparison import assert_agrees, assert_repeats
from pretrain.conformance.comparing.tolerance import assert_near
from pretrain.conformance.examples import DTYPES, attention
from pretrain.conformance.kernels.attention_cases import ANY, OWN_KEYS, SHAPES, each, long
from pretrain.conformance.kernels.attention_dropout import AttentionDropout
from pretrain.conformance.kernels.attention_inputs import calls, inputs, one_projection, parts
from pretrain.conformance.kernels.masks import documents, example_mask, mask_with_empty_rows
from pretrain.conformance.subject import oracle
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import AttentionRequest


class TestAttention(AttentionDropout):
    """An `AttentionFn`."""

    operations = ("attention",)

    @run_with(
        [
            *cases(*(attention(dtype, mask, **shape) for shape in SHAPES for mask in Mask for dtype in DTYPES)),
            *(long(mask=mask, size=size) for mask, size in ((Mask.CAUSAL, 64), (Mask.CAUSAL, 128), (Mask.NONE, 128))),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Forward and backward, for every kind of mask, with and without shared keys."""
        built, expected = subject.build(kernel, asked), oracle(asked)
        mask = example_mask(asked.mask, asked.micro_batch_size, asked.seq_length, asked.seq_length)
        # One token alone: the gradients of query and key are differences of equal terms.
        assert_agrees(*calls(built, expected, mask, subject.device), inputs(asked), subject.device, floor=1.0)

    @run_with([long(size=64, length=8192)])
    def test_agrees_over_4096_tokens(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Forward alone, causal; one row of every 128 against float64."""
        given, rows = inputs(asked), torch.arange(127, asked.seq_length, 128)
        with torch.no_grad():
            context = subject.build(kernel, asked)(**{name: x.to(subject.device) for name, x in given.items()})
        query, key, value = (x[:, 0, 0].double() for x in given.values())
        is_later = torch.arange(asked.seq_length) > rows[:, None]
        scores = (query[rows] @ key.t() * asked.scale).masked_fill(is_later, -torch.inf)
        assert_near(context.cpu()[rows, 0], scores.softmax(-1) @ value, asked.dtype, "context")

    @run_with(
        [
            *(case for mask in (Mask.NONE, Mask.CAUSAL) for shapes in (OWN_KEYS, ANY) for case in each(mask, shapes)),
            long(mask=Mask.CAUSAL),
        ]
    )
    def test_takes_the_parts_of_one_projection(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Query, key and value are views of one tensor [s, b, g, (n / g + 2) d], as the model makes it."""
        built, expected = subject.build(kernel, asked), oracle(asked)
        assert_agrees(
            lambda projection: built(**parts(projection, asked)),
            lambda projection: expected(**parts(projection, asked)),
            {"projection": one_projection(inputs(asked))},
            subject.device,
            floor=1.0,
        )

    @run_with(each())
    def test_takes_tensors_that_are_not_contiguous(
        self, subject: Subject, kernel: Kernel, asked: AttentionRequest
    ) -> None:
        """More than the parts of one projection: no dimension but the first is dense."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*calls(*kernels, None, subject.device), inputs(asked), subject.device, is_strided=True)

    @run_with([*each(scale=0.3), *each(scale=0.02)])
    def test_applies_the_requested_scale(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """The request's scale, and not the inverse root of the head size."""
        kernels = subject.build(kernel, asked), oracle(asked)
        assert_agrees(*calls(*kernels, None, subject.device), inputs(asked), subject.device)

    @run_with(each(divisor=8.0))
    def test_undoes_the_score_divisor(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """The divisor of stored scores does not change the result."""
        expected = oracle(replace(asked, score_divisor=1.0))
        kernels = subject.build(kernel, asked), expected
        assert_agrees(*calls(*kernels, None, subject.device), inputs(asked), subject.device)

    @run_with(each(mask=Mask.ARBITRARY))
    def test_keeps_documents_apart(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Several documents per row, of different lengths in each row of the batch, do not attend to each other."""
        kernels = subject.build(kernel, asked), oracle(asked)
        mask = documents(asked.micro_batch_size, asked.seq_length)
        assert_agrees(*calls(*kernels, mask, subject.device), inputs(asked), subject.device, floor=1.0)

    @run_with([*each(mask=Mask.KEY_PADDING), *each(mask=Mask.ARBITRARY)])
    def test_queries_that_see_no_key_get_zeros(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Their context is exactly zero, they get no gradient and give none; other queries are unaffected."""
        mask, empty = mask_with_empty_rows(asked.mask, asked.micro_batch_size, asked.seq_length, asked.seq_length)
        kernels = subject.build(kernel, asked), oracle(asked)
        results = assert_agrees(*calls(*kernels, mask, subject.device), inputs(asked), subject.device)
        for name in ("output", "gradient of query"):
            rows = results[name].cpu().transpose(0, 1)[empty]
            assert not rows.count_nonzero(), f"{name}: {rows.count_nonzero()} entries of empty rows are not zero"

    @run_with([*each(deterministic=True), long(mask=Mask.CAUSAL, deterministic=True)])
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(subject.build(kernel, asked), oracle(asked), inputs(asked), subject.device, floor=1.0)
