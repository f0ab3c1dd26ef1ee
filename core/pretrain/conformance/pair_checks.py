"""Checks that run on two ranks; each raises an error on a wrong result."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from pretrain.conformance import examples
from pretrain.conformance.comparison import forward_backward, oracle, random
from pretrain.conformance.examples import DTYPES
from pretrain.conformance.pair_collectives import COLLECTIVES, SIZES, DeferredGroup, check_collective, world_group
from pretrain.conformance.tensor_error import assert_near

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

    from pretrain.conformance.pair_collectives import PairRank
    from pretrain.conformance.subject import Kernel
    from pretrain.plugins.requests import Request

    Part = Callable[[PairRank, Kernel], None]
    GroupOf = Callable[[], ProcessGroup]

OUT, IN = 8, 6


def check_linear(rank: PairRank, kernel: Kernel, *, is_split: bool, dtype: torch.dtype, group_of: GroupOf) -> None:
    """Each rank holds half of the output's rows; with `is_split` also half of the sequence of the input."""
    request = examples.linear(dtype, tensor_parallel_size=2, sequence_parallel=is_split)
    linear = partial(rank.build(kernel, request), group=group_of())
    x = random(4, 3, IN, dtype=dtype)
    weights = [random(OUT, IN, dtype=dtype, seed=1 + number) for number in range(2)]
    biases = [random(OUT, dtype=dtype, seed=3 + number) for number in range(2)]
    grads = [random(4, 3, OUT, dtype=dtype, seed=5 + number) for number in range(2)]
    mine = slice(2 * rank.number, 2 * rank.number + 2) if is_split else slice(None)
    own, bias = weights[rank.number], biases[rank.number]
    inputs = {"x": x[mine], "weight": own, "bias": bias}
    results = forward_backward(
        linear, inputs, lambda t: t.to(rank.device), grads[rank.number], is_watched=group_of is world_group
    )
    grad = grads[rank.number].double().flatten(0, 1)
    whole_grad = sum(g.double() @ w.double() for g, w in zip(grads, weights, strict=True))
    expected = {
        "output": x.double() @ own.double().t() + bias.double(),
        "gradient of x": torch.as_tensor(whole_grad)[mine],
        "gradient of weight": grad.t() @ x.double().flatten(0, 1),
        "gradient of bias": grad.sum(0),
    }
    for name, value in expected.items():
        assert_near(results[name], value, dtype, name)


def check_cross_entropy(
    rank: PairRank, kernel: Kernel, *, dtype: torch.dtype, vocab_size: int, group_of: GroupOf
) -> None:
    """Each rank holds half of 64 columns; the second one's are padding in part, or all."""
    request = examples.cross_entropy(dtype, vocab_size=vocab_size, padded=64, tensor_parallel_size=2)
    cross_entropy = partial(rank.build(kernel, request), group=group_of())
    logits = random(7, 2, 64, dtype=dtype) * 3
    logits[..., vocab_size:] = 30  # padding, which must not count
    target = torch.arange(14).view(7, 2) * 13 % vocab_size
    grad_loss = random(7, 2, dtype=torch.float32, seed=3)
    expected = forward_backward(
        partial(oracle(examples.cross_entropy(vocab_size=vocab_size)), target=target),
        {"logits": logits},
        torch.Tensor.double,
        grad_loss,
    )
    mine = slice(32 * rank.number, 32 * rank.number + 32)
    results = forward_backward(
        partial(cross_entropy, target=target.to(rank.device)),
        {"logits": logits[..., mine]},
        lambda t: t.to(rank.device),
        grad_loss,
        is_watched=group_of is world_group,
    )
    assert_near(results["output"], expected["output"], dtype, "loss")
    assert_near(results["gradient of logits"], expected["gradient of logits"][..., mine], dtype, "gradient of logits")


def _deferred() -> ProcessGroup:
    return DeferredGroup(world_group())


GROUPS: tuple[GroupOf, ...] = (world_group, _deferred)

CHECKS: dict[str, dict[str, list[Part]]] = {
    "collectives": {
        f"{name} {way}": [
            partial(check_collective, name=name, is_async=way == "async", dtype=dtype, size=size)
            for size in SIZES
            for dtype in DTYPES
        ]
        for name in COLLECTIVES
        for way in ("sync", "async")
    },
    "linear": {
        f"linear {way}": [
            partial(check_linear, is_split=way == "sequence_parallel", dtype=dtype, group_of=group_of)
            for dtype in DTYPES
            for group_of in GROUPS
        ]
        for way in ("all_reduce", "sequence_parallel")
    },
    "cross_entropy": {
        "cross_entropy": [
            partial(check_cross_entropy, dtype=dtype, vocab_size=vocab_size, group_of=group_of)
            for dtype in DTYPES
            for vocab_size in (50, 20)
            for group_of in GROUPS
        ]
    },
}
"""Operation -> name -> parts. A part communicates first and compares last: a rank that raises has made all calls."""

REQUESTS: dict[str, list[Request]] = {
    "collectives": [examples.collectives()],
    "linear": [
        examples.linear(dtype, tensor_parallel_size=2, sequence_parallel=is_split)
        for dtype in DTYPES
        for is_split in (False, True)
    ],
    "cross_entropy": [examples.cross_entropy(dtype, tensor_parallel_size=2) for dtype in DTYPES],
}
"""Operation -> requests for which its kernels are listed."""
