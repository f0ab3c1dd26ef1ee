"""Vocabulary-parallel cross entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pretrain.conformance.cases import Case, run_with
from pretrain.conformance.comparison import assert_agrees, assert_repeats, oracle, random
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.examples import DTYPES, cross_entropy
from pretrain.conformance.two_ranks import RankPair

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import CrossEntropyRequest

VOCABULARIES = [(2, 2), (50, 64), (64, 64), (997, 1024)]
"""Entries, columns."""

TOKENS = [(1, 1), (7, 2), (33, 1)]
LARGE = [
    cross_entropy(dtype, vocab_size=50257, padded=50304, length=3, micro_batch=2)
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
]


class TestCrossEntropy:
    """A `CrossEntropyFn`."""

    operations = ("cross_entropy",)

    @run_with(
        [
            *(
                cross_entropy(dtype, vocab_size=vocab_size, padded=padded, length=length, micro_batch=micro_batch)
                for length, micro_batch in TOKENS
                for vocab_size, padded in VOCABULARIES
                for dtype in DTYPES
            ),
            *LARGE,
            Case(tuple(cross_entropy(dtype, length=8192, micro_batch=1) for dtype in DTYPES), is_costly=True),
        ]
    )
    def test_agrees_with_float64(self, subject: Subject, kernel: Kernel, asked: CrossEntropyRequest) -> None:
        """The loss in fp32, and the gradient of the logits; padding columns are ignored and get no gradient."""
        logits = example_call(asked, asked.seq_length).inputs["logits"]
        logits[..., asked.vocab_size :] = 30  # the largest logit, if it were not ignored
        results = self._compare(subject, kernel, asked, logits, is_strided=asked.seq_length == 33)
        padding = results["gradient of logits"][..., asked.vocab_size :]
        assert not padding.count_nonzero(), f"{padding.count_nonzero()} gradients of padding are not zero"

    @run_with(cross_entropy(dtype) for dtype in DTYPES)
    def test_takes_large_logits(self, subject: Subject, kernel: Kernel, asked: CrossEntropyRequest) -> None:
        """Logits whose exponentials overflow fp32, and targets whose weights underflow."""
        self._compare(subject, kernel, asked, random(7, 2, 64, dtype=asked.dtype) * 300)

    @run_with(cross_entropy(dtype, deterministic=True) for dtype in DTYPES)
    def test_repeats_when_deterministic(self, subject: Subject, kernel: Kernel, asked: CrossEntropyRequest) -> None:
        """Calls are bitwise reproducible and agree with the oracle."""
        call = example_call(asked, asked.seq_length)
        options: dict[str, Any] = {"constants": call.constants, "output_dtype": torch.float32}
        assert_repeats(subject.build(kernel, asked), oracle(asked), call.inputs, subject.device, **options)

    @run_with([Case(tuple(cross_entropy(dtype, tensor_parallel_size=2) for dtype in DTYPES))])
    def test_two_ranks(self, subject: Subject, kernel: Kernel, asked: CrossEntropyRequest) -> None:
        """Each with half of the columns, the second one with padding only or in part; no result is read too early."""
        assert subject.takes(kernel, asked)
        RankPair.of(subject).require("cross_entropy", kernel)

    def _compare(
        self,
        subject: Subject,
        kernel: Kernel,
        asked: CrossEntropyRequest,
        logits: Tensor,
        *,
        is_strided: bool = False,
    ) -> dict[str, Tensor]:
        return assert_agrees(
            subject.build(kernel, asked),
            oracle(asked),
            {"logits": logits},
            subject.device,
            constants=example_call(asked, asked.seq_length).constants,
            is_strided=is_strided,
            output_dtype=torch.float32,
        )
