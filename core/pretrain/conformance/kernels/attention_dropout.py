"""Dropout of attention weights: the dropout mask is recovered, and results are compared under it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import run_with
from pretrain.conformance.comparing.comparison import assert_agrees, forward_backward, random
from pretrain.conformance.comparing.default_generator import generator_of
from pretrain.conformance.comparing.dropout_rate import assert_dropout_rate, assert_independent
from pretrain.conformance.comparing.tolerance import assert_near
from pretrain.conformance.kernels.attention_cases import ANY, each, long
from pretrain.conformance.kernels.attention_inputs import calls, inputs, one_projection, parts
from pretrain.conformance.kernels.masks import example_mask
from pretrain.conformance.subject import oracle
from pretrain.plugins.requests import Mask

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import AttentionRequest

LONG_ENOUGH = ANY[1:]
"""Long enough that no two rows drop the same by chance."""


class AttentionDropout:
    """The tests of dropout, part of `TestAttention`."""

    @run_with(
        [
            *(case for mask in Mask for case in each(mask, LONG_ENOUGH, dropout=0.25)),
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
        call = partial(_of_projection, built, asked, None if mask is None else place(mask))
        generator = generator_of(subject)
        state = generator.get_rng_state()
        actual = forward_backward(call, {"projection": projection}, place)
        weights = _weights(call, given, asked, place, lambda: generator.set_rng_state(state))
        kept = weights != 0  # [b, n, s, s]
        undropped = _softmax(given, asked, mask)
        whole = undropped / (1 - asked.dropout)
        assert_near(weights, whole.where(kept, 0), asked.dtype, "weights that are kept")
        assert_dropout_rate(asked.dropout, kept[undropped > 0])
        if mask is None:
            assert_independent(kept)
        grad = random(*actual["output"].shape, dtype=asked.dtype, seed=7)
        expected = forward_backward(
            partial(_under, kept, asked, mask), {"projection": projection}, torch.Tensor.double, grad
        )
        names = {"projection": "query, key and value"}
        for name, value in expected.items():
            told = f"{name.replace('projection', names['projection'])} under dropout"
            assert_near(actual[name], value, asked.dtype, told)

    @run_with(each(dropout=0.5))
    def test_no_dropout_outside_training(self, subject: Subject, kernel: Kernel, asked: AttentionRequest) -> None:
        """training=False drops nothing."""
        built, expected = subject.build(kernel, asked), oracle(replace(asked, dropout=0.0))
        kernels = calls(partial(built, training=False), expected, None, subject.device)
        assert_agrees(*kernels, inputs(asked), subject.device)


def _of_projection(kernel: Any, asked: AttentionRequest, mask: Tensor | None, projection: Tensor) -> Tensor:
    context: Tensor = kernel(**parts(projection, asked), mask=mask)
    return context


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
        mask = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores if mask is None else scores.masked_fill(mask, -torch.inf), dim=-1)


def _under(kept: Tensor, asked: AttentionRequest, mask: Tensor | None, projection: Tensor) -> Tensor:
    """Return the context in float64 when only these weights are kept."""
    given = parts(projection, asked)
    weights = _softmax(given, asked, mask) * kept / (1 - asked.dropout)
    value = given["value"].repeat_interleave(asked.heads // asked.query_groups, dim=2)
    return torch.einsum("bnqk,kbnd->qbnd", weights, value).flatten(2)
