"""Comparing a case with one process of the megatron engine that never stopped."""

from __future__ import annotations

from functools import cache

import pytest

from engine import tiny
from engine.layouts import SAVED_AT, Case


@cache
def one_process(model, last):
    """Train without interruption in this process."""
    return tiny.run(Case(model, (), last=last), folder=None)


def check(result, case):
    """Compare with one process, which never stopped."""
    expected = one_process(case.model, case.last)
    first = SAVED_AT if case.loads else 0
    # Sums over ranks are rounded otherwise; in 16 bits every activation is.
    in_16_bits = not {"precision.dtype=bf16", "precision.dtype=fp16"}.isdisjoint(case.model)
    rel = 5e-3 if in_16_bits else 1e-5
    assert_close(result["curve"], expected["curve"][first:], rel)
    assert result["held out"] == pytest.approx(expected["held out"], rel=rel)
    assert result["parameters"] == pytest.approx(expected["parameters"], rel=rel)
    assert result["logits"] == pytest.approx(expected["logits"], abs=100 * rel)


def assert_close(curve, expected, rel):
    losses, norms = zip(*curve, strict=True)
    expected_losses, expected_norms = zip(*expected, strict=True)
    assert losses == pytest.approx(expected_losses, rel=rel)
    assert norms == pytest.approx(expected_norms, rel=rel)
