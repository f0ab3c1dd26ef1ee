"""Vocabulary-parallel cross entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pretrain.testing import examples
from pretrain.testing.comparison import assert_agrees, assert_repeats, random
from pretrain.testing.examples import DTYPES
from pretrain.testing.ranks import Ranks
from pretrain.testing.subject import oracle

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.plugins.requests import CrossEntropyRequest
    from pretrain.testing.subject import Kernel, Subject

VOCABULARIES = [(2, 2), (50, 64), (64, 64), (997, 1024)]
"""Entries, columns."""


class TestCrossEntropy:
    """A `CrossEntropyFn`."""

    operations = ("cross_entropy",)

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize(("vocab_size", "padded"), VOCABULARIES)
    @pytest.mark.parametrize("tokens", [(1, 1), (7, 2), (33, 1)], ids=str)
    def test_agrees_with_float64(
        self,
        subject: Subject,
        kernel: Kernel,
        tokens: tuple[int, int],
        vocab_size: int,
        padded: int,
        dtype: torch.dtype,
    ) -> None:
        """The loss in fp32, and the gradient of the logits; padding columns count for nothing and get none."""
        length, micro_batch = tokens
        request = examples.cross_entropy(
            dtype, vocab_size=vocab_size, padded=padded, length=length, micro_batch=micro_batch
        )
        logits = random(*tokens, padded, dtype=dtype) * 3
        logits[..., vocab_size:] = 30  # would win, if it counted
        results = self._compare(subject, kernel, request, logits, is_strided=tokens[0] == 33)
        padding = results["gradient of logits"][..., vocab_size:]
        assert not padding.count_nonzero(), f"{padding.count_nonzero()} gradients of padding are not zero"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_takes_large_logits(self, subject: Subject, kernel: Kernel, dtype: torch.dtype) -> None:
        """Logits whose exponentials overflow fp32, and targets whose weights underflow."""
        logits = random(7, 2, 64, dtype=dtype) * 300
        self._compare(subject, kernel, examples.cross_entropy(dtype), logits)

    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel) -> None:
        """The same bits on every call."""
        built = subject.build(kernel, examples.cross_entropy())
        target = _target((7, 2), 50).to(subject.device)
        logits = {"logits": random(7, 2, 64, dtype=torch.float32)}
        assert_repeats(lambda logits: built(logits, target), logits, subject.device)

    def test_two_ranks(self, subject: Subject, kernel: Kernel) -> None:
        """Each with half of the columns, the second one with padding only or in part; no result is read too early."""
        Ranks.of(subject).require("cross_entropy", kernel)

    def _compare(
        self,
        subject: Subject,
        kernel: Kernel,
        request: CrossEntropyRequest,
        logits: Tensor,
        *,
        is_strided: bool = False,
    ) -> dict[str, Tensor]:
        built, expected = subject.build(kernel, request), oracle(request)
        target = _target((logits.shape[0], logits.shape[1]), request.vocab_size)
        return assert_agrees(
            lambda logits: built(logits, target.to(subject.device)),
            lambda logits: expected(logits, target),
            {"logits": logits},
            subject.device,
            is_strided=is_strided,
            output_dtype=torch.float32,
        )


def _target(shape: tuple[int, int], vocab_size: int) -> Tensor:
    target = torch.randint(vocab_size, shape, generator=torch.Generator().manual_seed(5))
    target.view(-1)[-1] = vocab_size - 1
    return target
