"""Rotary position embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pretrain.conformance.cases import Case, cases, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, oracle, random
from pretrain.conformance.example_calls import rotations
from pretrain.conformance.examples import DTYPES, rotary

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import RotaryRequest

SIZES = [(16, 16, 4), (8, 16, 4), (2, 16, 4), (64, 64, 2), (24, 96, 2), (128, 128, 2), (256, 256, 1)]
"""Rotated dimensions, of how many, heads."""

ANY = [{"rotary_size": turned, "size": size, "heads": heads} for turned, size, heads in (SIZES[1], SIZES[5])]


class TestRotary:
    """A `RotaryFn`."""

    operations = ("rotary",)

    @run_with(
        [
            *cases(
                *(
                    rotary(dtype, rotary_size=turned, size=size, heads=heads, length=length)
                    for turned, size, heads in SIZES
                    for length in (1, 7, 33)
                    for dtype in DTYPES
                )
            ),
            Case(tuple(rotary(dtype, rotary_size=128, size=128, heads=1, length=8192) for dtype in DTYPES), True),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Forward and backward, of all dimensions and of the first ones only."""
        built, expected, x = *_calls(subject, kernel, asked), _input(asked)
        assert_agrees(built, expected, {"x": x}, subject.device, is_strided=asked.seq_length == 33)

    @run_with(Case(tuple(rotary(dtype, **shape) for shape in ANY)) for dtype in DTYPES)
    def test_takes_a_part_of_one_projection(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Queries or keys that are views of the fused projection; fewer heads of keys than of queries."""
        built, expected = _calls(subject, kernel, asked)
        size = asked.head_size
        for heads in (asked.heads, 1):
            projection = random(33, 2, heads, 3 * size, dtype=asked.dtype)
            assert_agrees(
                lambda projection: built(projection[..., size : 2 * size]),
                lambda projection: expected(projection[..., size : 2 * size]),
                {"projection": projection},
                subject.device,
            )

    @run_with(Case(tuple(replace(rotary(dtype, **shape), deterministic=True) for shape in ANY)) for dtype in DTYPES)
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: RotaryRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        assert_repeats(*_calls(subject, kernel, asked), {"x": _input(asked)}, subject.device)


def _input(asked: RotaryRequest) -> Tensor:
    batch = 1 if asked.seq_length > 2048 else 2
    return random(asked.seq_length, batch, asked.heads, asked.head_size, dtype=asked.dtype)


def _calls(subject: Subject, kernel: Kernel, asked: RotaryRequest) -> tuple[Callable[..., Any], Callable[..., Any]]:
    built, expected = subject.build(kernel, asked), oracle(asked)
    cos, sin = rotations(asked.seq_length, asked.rotary_size)
    placed = cos.to(subject.device), sin.to(subject.device)
    return lambda x: built(x, *placed), lambda x: expected(x, cos, sin)
