"""Attention without projections; with dropout, results are compared under the recovered mask."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.compared_part import mask_of_documents
from pretrain.conformance.comparison import assert_agrees, assert_repeats, forward_backward, oracle, placed, random
from pretrain.conformance.example_calls import example_documents, example_mask, mask_with_empty_rows
from pretrain.conformance.examples import DTYPES, attention
from pretrain.conformance.kernels.attention_inputs import (
    ANY,
    OWN_KEYS,
    PIECES,
    SHAPES,
    WINDOWED_PIECES,
    WINDOWS,
    each,
    inputs,
    long,
    one_projection,
    outside,
    parts,
)
from pretrain.conformance.kernels.dropout import assert_dropout_rate, assert_independent, generator_of
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import Documents

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import AttentionRequest


OF_TENSORS = tuple(mask for mask in Mask if mask is not Mask.DOCUMENTS)
LONG_ENOUGH = ANY[1:]
"""Long enough that no two rows drop the same by chance."""


class AttentionDropout:
    """The tests of dropout, part of `TestAttention`."""

    @run_with(
        [
            *(case for mask in Mask for case in each(mask, LONG_ENOUGH, dropout=0.25)),
            Case(
                tuple(attention(dtype, **shape, dropout=0.25, window=37) for shape in LONG_ENOUGH for dtype in DTYPES)
            ),
            long(mask=Mask.CAUSAL, dropout=0.25),
        ]
    )
    def test_dropout(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Weights are dropped independently at the requested rate; output and gradients use the kept ones."""
        built, given = subject.build(kernel, asked), inputs(asked)
        projection = one_projection(given)

        def place(x: Tensor) -> Tensor:
            return x.to(subject.device)

        mask = example_mask(asked.mask, asked.micro_batch_size, asked.seq_length, asked.seq_length)
        there = placed(mask, place)
        if isinstance(mask, Documents):
            mask = mask_of_documents(mask, asked.micro_batch_size, asked.window)

        def call(projection: Tensor) -> Tensor:
            context: Tensor = built(**parts(projection, asked), mask=there)
            return context

        generator = generator_of(subject)
        state = generator.get_rng_state()
        actual = forward_backward(call, {"projection": projection}, place)
        weights = _weights(call, given, asked, place, lambda: generator.set_rng_state(state))
        kept = weights != 0  # [b, n, s, s]
        undropped = _softmax(given, asked, mask)
        whole = undropped / (1 - asked.dropout)
        assert_near(weights, whole.where(kept, 0), asked.dtype, "weights that are kept")
        assert_dropout_rate(asked.dropout, kept[undropped > 0])
        if mask is None and asked.window is None:
            assert_independent(kept)
        grad = random(*actual["output"].shape, dtype=asked.dtype, seed=7)
        expected = forward_backward(
            partial(_under, kept, asked, mask), {"projection": projection}, torch.Tensor.double, grad
        )
        for name, value in expected.items():
            told = name.replace("projection", "query, key and value")
            assert_near(actual[name], value, asked.dtype, f"{told} under dropout")

    @run_with(each(dropout=0.5))
    def test_no_dropout_outside_training(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """training=False drops nothing."""
        built, expected = subject.build(kernel, asked), oracle(replace(asked, dropout=0.0))
        assert_agrees(partial(built, training=False), expected, inputs(asked), subject.device)


def _weights(
    call: Callable[..., Tensor],
    given: dict[str, Tensor],
    asked: AttentionRequest,
    place: Callable[[Tensor], Tensor],
    restart: Callable[[], object],
) -> Tensor:
    """Return the weights [b, n, s, s]: a value that is 1 for one key in each of its d entries shows d keys at a time.

    Every call starts from the same state of the generator, and so drops the same.
    """
    length, size, seen = asked.seq_length, asked.head_size, []
    for start in range(0, length, size):
        shown = torch.eye(length, dtype=asked.dtype)[:, start : start + size]
        value = torch.zeros_like(given["value"])
        value[..., : shown.shape[1]] = shown[:, None, None]
        restart()
        context = call(place(one_projection(given | {"value": value})).requires_grad_()).detach().cpu()
        context = context.view(length, asked.micro_batch_size, asked.heads, size)
        seen.append(context[..., : shown.shape[1]].permute(1, 2, 0, 3))
    return torch.cat(seen, dim=-1)


def _softmax(given: dict[str, Tensor], asked: AttentionRequest, mask: Tensor | None) -> Tensor:
    """Return the weights without dropout in float64, [b, n, s, s]."""
    shared = asked.heads // asked.query_groups
    query, key = given["query"].double(), given["key"].double().repeat_interleave(shared, dim=2)
    scores = torch.einsum("qbnd,kbnd->bnqk", query, key) * asked.scale
    if asked.mask is Mask.CAUSAL:
        mask = outside(asked)
    return torch.softmax(scores if mask is None else scores.masked_fill(mask, -torch.inf), dim=-1)


def _under(kept: Tensor, asked: AttentionRequest, mask: Tensor | None, projection: Tensor) -> Tensor:
    """Return the context in float64 when only these weights are kept."""
    given = parts(projection, asked)
    weights = _softmax(given, asked, mask) * kept / (1 - asked.dropout)
    value = given["value"].repeat_interleave(asked.heads // asked.query_groups, dim=2)
    return torch.einsum("bnqk,kbnd->qbnd", weights, value).flatten(2)


class AttentionOfDocuments:
    """The tests of documents and of fewer queries than keys, part of `TestAttention`: against masks of both."""

    @run_with(
        Case(tuple(attention(dtype, Mask.DOCUMENTS, **shape) for dtype in reversed(DTYPES)))
        for shape in (*SHAPES, *WINDOWS, *PIECES)
    )
    def test_keeps_documents_apart(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Documents of other lengths in each row of the batch, some of one token or none, and keys without queries."""
        mask = example_documents(asked.micro_batch_size, asked.seq_length, asked.most_keys)
        _agree_with_a_mask(subject, kernel, asked, mask)

    @run_with(
        Case(tuple(attention(d, Mask.DOCUMENTS, **shape) for shape in ANY for d in reversed(DTYPES))) for _ in "1"
    )
    def test_documents_end_anywhere(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """A second document begins at each position about the edges of a kernel's blocks, one after the other."""
        for begin in {2, 15, 16, 17, 31, 32, asked.seq_length - 1}:
            mask = example_documents(asked.micro_batch_size, asked.seq_length, asked.seq_length, [begin - 1, 1000])
            _agree_with_a_mask(subject, kernel, asked, mask)

    @run_with(
        Case(tuple(attention(dtype, **shape) for dtype in reversed(DTYPES))) for shape in (*PIECES, *WINDOWED_PIECES)
    )
    def test_queries_are_the_last_of_the_keys(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Calls with as many keys as queries, with the most, and with a number between them."""
        for keys in (asked.seq_length, (asked.seq_length + asked.most_keys) // 2, asked.most_keys):
            given, row = inputs(replace(asked, keys=keys)), torch.arange(keys)
            last = torch.arange(asked.seq_length)[:, None] + keys - asked.seq_length
            masked = (row > last) | (row <= last - (asked.window or keys))
            expected = oracle(replace(asked, mask=Mask.ARBITRARY, keys=0, window=None))
            built = subject.build(kernel, asked)
            assert_agrees(built, partial(expected, mask=masked[None, None]), given, subject.device, floor=1.0)

    @run_with(
        Case(tuple(attention(d, Mask.DOCUMENTS, **s, deterministic=True) for s in ANY for d in DTYPES)) for _ in "1"
    )
    def test_documents_repeat_when_deterministic(
        self, subject: Subject, kernel: Kernel, asked: AttentionRequest
    ) -> None:
        """Calls are bitwise reproducible."""
        mask = example_documents(asked.micro_batch_size, asked.seq_length, asked.seq_length)
        expected = oracle(asked)
        constants = {"mask": mask}
        built = subject.build(kernel, asked)
        assert_repeats(built, expected, inputs(asked), subject.device, constants=constants, floor=1.0)


def _agree_with_a_mask(subject: Subject, kernel: Kernel, asked: AttentionRequest, documents: Documents) -> None:
    expected = oracle(replace(asked, mask=Mask.ARBITRARY, window=None, keys=0))
    masked = mask_of_documents(documents, asked.micro_batch_size, asked.window)
    there = placed(documents, lambda x: x.to(subject.device))
    built = partial(subject.build(kernel, asked), mask=there)
    # One token alone: the gradients of query and key are differences of equal terms.
    assert_agrees(built, partial(expected, mask=masked), inputs(asked), subject.device, floor=1.0)


class TestAttention(AttentionDropout, AttentionOfDocuments):
    """An `AttentionFn`."""

    operations = ("attention",)

    @run_with(
        [
            *(attention(dtype, mask, **shape) for shape in SHAPES for mask in OF_TENSORS for dtype in DTYPES),
            *(long(mask=mask, size=size) for mask, size in ((Mask.CAUSAL, 64), (Mask.CAUSAL, 128), (Mask.NONE, 128))),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Forward and backward, for every kind of mask, with and without shared keys."""
        built, expected = subject.build(kernel, asked), oracle(asked)
        mask = example_mask(asked.mask, asked.micro_batch_size, asked.seq_length, asked.seq_length)
        # One token alone: the gradients of query and key are differences of equal terms.
        assert_agrees(built, expected, inputs(asked), subject.device, constants={"mask": mask}, floor=1.0)

    @run_with(Case(tuple(attention(dtype, **shape) for dtype in reversed(DTYPES))) for shape in WINDOWS)
    def test_sees_a_window(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """A query sees the window's number of keys, itself included: against a mask that holds the window."""
        expected = oracle(replace(asked, window=None, mask=Mask.ARBITRARY))
        built, mask = subject.build(kernel, asked), outside(asked)[None, None]
        assert_agrees(built, partial(expected, mask=mask), inputs(asked), subject.device, floor=1.0)

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
        assert_agrees(subject.build(kernel, asked), oracle(asked), inputs(asked), subject.device, is_strided=True)

    @run_with([*each(scale=0.3), *each(scale=0.02)])
    def test_applies_the_requested_scale(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """The request's scale, and not the inverse root of the head size."""
        assert_agrees(subject.build(kernel, asked), oracle(asked), inputs(asked), subject.device)

    @run_with(each(divisor=8.0))
    def test_undoes_the_score_divisor(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """The divisor of stored scores does not change the result."""
        expected = oracle(replace(asked, score_divisor=1.0))
        assert_agrees(subject.build(kernel, asked), expected, inputs(asked), subject.device)

    @run_with([*each(mask=Mask.KEY_PADDING), *each(mask=Mask.ARBITRARY)])
    def test_queries_that_see_no_key_get_zeros(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Their context is exactly zero, they get no gradient and give none; other queries are unaffected."""
        mask, empty = mask_with_empty_rows(asked.mask, asked.micro_batch_size, asked.seq_length, asked.seq_length)
        kernels = subject.build(kernel, asked), oracle(asked)
        results = assert_agrees(*kernels, inputs(asked), subject.device, constants={"mask": mask})
        for name in ("output", "gradient of query"):
            rows = results[name].cpu().transpose(0, 1)[empty]
            assert not rows.count_nonzero(), f"{name}: {rows.count_nonzero()} entries of empty rows are not zero"

    @run_with([*each(deterministic=True), long(mask=Mask.CAUSAL, deterministic=True)])
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(subject.build(kernel, asked), oracle(asked), inputs(asked), subject.device, floor=1.0)
