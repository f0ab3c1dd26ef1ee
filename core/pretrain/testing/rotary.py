"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.subject import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.testing.subject import Kernel, Subject


class TestRotary:
    """A `RotaryFn`."""

    operations = ("rotary",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("rotary_size", [16, 8, 2])
    @pytest.mark.parametrize("length", [1, 7, 33])
    def test_agrees_with_float64(
        self, subject: Subject, kernel: Kernel, length: int, rotary_size: int, dtype: torch.dtype
    ) -> None:
        """Forward and backward, of all dimensions and of the first ones only."""
        request = examples.rotary(dtype, rotary_size=rotary_size, length=length)
        built, expected = subject.build(kernel, request), oracle(request)
        cos, sin = rotations(length, rotary_size)
        assert_agrees(
            lambda x: built(x, cos.to(subject.device), sin.to(subject.device)),
            lambda x: expected(x, cos, sin),
            {"x": random(length, 2, 4, 16, dtype=dtype)},
            subject.device,
            is_strided=length == 33,
        )

    def test_leaves_its_input_alone(self, subject: Subject, kernel: Kernel) -> None:
        """The result is a new tensor: keys and queries may be views of one projection."""
        built = subject.build(kernel, examples.rotary())
        x = random(33, 2, 4, 16, dtype=torch.float32).to(subject.device)
        before = x.clone()
        built(x, *(table.to(subject.device) for table in rotations(33, 16)))
        assert torch.equal(x, before), "the input was overwritten"


def rotations(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin, fp32 [s, 1, 1, size], of angles position * 10000^(-2 i / size); both halves are equal."""
    frequencies = 10000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length).float(), frequencies)
    angles = torch.cat((angles, angles), dim=-1).view(length, 1, 1, size)
    return angles.cos(), angles.sin()
