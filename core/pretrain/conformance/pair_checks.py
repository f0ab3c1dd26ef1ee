"""Checks that run on two ranks, and a process group that communicates as late as allowed.

Each check raises an error on a wrong result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pretrain.collectives import world_group
from pretrain.conformance import examples
from pretrain.conformance.comparison import forward_backward, oracle, random
from pretrain.conformance.examples import DTYPES
from pretrain.conformance.subject import callable_of
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request

    OfRank = Callable[[int], Tensor]  # what a rank sends, on the host
    Part = Callable[["PairRank", Kernel], None]
    GroupOf = Callable[[], ProcessGroup]

SIZES = (1000, 2**20 + 3)
"""Elements of each message: few, and an odd number that libraries cut into pieces."""


def check_collective(
    rank: PairRank, kernel: Kernel, *, name: str, is_async: bool, dtype: torch.dtype, size: int
) -> None:
    """Run a collective on a new group with the kernel's options; the async result is read after its wait."""
    backend = rank.subject.plugins.backend
    if not backend.supports(dtype) or (name.startswith("batched") and not backend.point_to_point().batched):
        return
    request = examples.collectives(backend.process_group)
    group = dist.new_group(pg_options=rank.build(kernel, request)("tp"))
    actual, expected = COLLECTIVES[name](rank, group, partial(_numbers, size, dtype), is_async)
    dist.destroy_process_group(group)
    wrong = int((actual.cpu() != expected).sum())
    assert not wrong, f"{wrong} of {expected.numel()} entries are wrong ({size} per rank, {dtype})"


def _numbers(size: int, dtype: torch.dtype, rank: int) -> Tensor:
    return (torch.arange(size) % 50 + 100 * rank).to(dtype)  # small integers: exact in bf16, and so are their sums


def _wait(work: dist.Work | None) -> None:
    if work is not None:
        work.wait()


def _all_reduce(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    tensor = of(rank.number).to(rank.device)
    for _ in range(20):
        tensor = tensor.clone()  # an asynchronous device is still at it when the collective is called, which must wait
    _wait(dist.all_reduce(tensor, group=group, async_op=is_async))
    return tensor, of(0) + of(1)


def _all_gather(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    own = of(rank.number).to(rank.device)
    gathered = torch.cat((own, own)).zero_()
    _wait(dist.all_gather_into_tensor(gathered, own, group=group, async_op=is_async))
    return gathered, torch.cat((of(0), of(1)))


def _reduce_scatter(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    own = torch.cat((of(rank.number), of(rank.number) + 1)).to(rank.device)
    part = torch.zeros_like(own.chunk(2)[0])
    _wait(dist.reduce_scatter_tensor(part, own, group=group, async_op=is_async))
    return part, of(0) + of(1) + 2 * rank.number


def _broadcast(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    tensor = of(rank.number).to(rank.device)
    _wait(dist.broadcast(tensor, src=1, group=group, async_op=is_async))
    return tensor, of(1)


def _send_recv(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    """Rank 0 sends and rank 1 receives, then the reverse."""
    peer = 1 - rank.number
    own = of(rank.number).to(rank.device)
    received = torch.zeros_like(own)
    for sender in (0, 1):
        if is_async:
            is_sender = rank.number == sender
            _wait(dist.isend(own, peer, group=group) if is_sender else dist.irecv(received, peer, group=group))
        elif rank.number == sender:
            dist.send(own, peer, group=group)
        else:
            dist.recv(received, peer, group=group)
    return received, of(peer)


def _batched_send_recv(rank: PairRank, group: ProcessGroup, of: OfRank, is_async: bool) -> tuple[Tensor, Tensor]:
    """Two messages each way at once, as an interleaved pipeline sends them: they arrive in the order of the calls."""
    peer = 1 - rank.number
    sent = [(of(rank.number) + 50 * number).to(rank.device) for number in range(2)]
    received = [torch.zeros_like(each) for each in sent]
    sends = [dist.P2POp(dist.isend, tensor, peer, group) for tensor in sent]
    receives = [dist.P2POp(dist.irecv, tensor, peer, group) for tensor in received]
    works = dist.batch_isend_irecv([*sends, *receives] if is_async else [*receives, *sends])
    for work in works:
        work.wait()
    return torch.cat(received), torch.cat([of(peer) + 50 * number for number in range(2)])


COLLECTIVES: dict[str, Callable[[PairRank, ProcessGroup, OfRank, bool], tuple[Tensor, Tensor]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "send_recv": _send_recv,
    "batched_send_recv": _batched_send_recv,
}
"""Name -> function that runs it and returns the received and the expected tensor."""


class DeclinedError(Exception):
    """The kernel does not take this request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairRank:
    """One of the ranks."""

    subject: Subject
    number: int
    device: torch.device

    def build(self, kernel: Kernel, request: Request) -> Any:
        """Return the kernel's callable, or raise DeclinedError where it has none for the request."""
        if not self.subject.supports(request):
            msg = f"the device has no {request.dtype}"
            raise DeclinedError(msg)
        answer = self.subject.answer(kernel, request)
        if isinstance(answer, Offer):
            return callable_of(request, answer.build)
        raise DeclinedError("not offered for this request" if answer is None else answer.reason)


_COLLECTIVES = ("all", "reduce", "broadcast", "gather", "scatter")
"""Prefixes of the methods that communicate (with or without an underscore, by torch's version)."""


class DeferredGroup(dist.ProcessGroup):
    """Proxy of another group of the same ranks.

    A result that is read before its `wait` is deterministically wrong: a reduction has not happened, and what is
    received is nan. An input that is written before the `wait` is an error.
    """

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # an overload that torch's stub lacks
        self._inner = inner

    def __getattribute__(self, name: str) -> Any:
        if not name.lstrip("_").startswith(_COLLECTIVES):
            return super().__getattribute__(name)
        collective = getattr(self._inner, name)
        return lambda *args, **kwargs: _Deferred(lambda: collective(*args, **kwargs).wait(), *_tensors(name, args))


class _Deferred(dist.Work):
    def __init__(self, communicate: Callable[[], object], inputs: list[Tensor], outputs: list[Tensor]) -> None:
        super().__init__()
        self._communicate: Callable[[], object] | None = communicate
        self._inputs = [(tensor, tensor.clone()) for tensor in inputs]
        for tensor in outputs:
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002  torch's signature
        """Communicate now."""
        communicate, self._communicate = self._communicate, None
        if communicate is not None:
            if any(not torch.equal(tensor, before) for tensor, before in self._inputs):
                msg = "a tensor was overwritten before its communication was waited for"
                raise RuntimeError(msg)
            communicate()
        return True

    def is_completed(self) -> bool:
        """Say whether it was waited for."""
        return self._communicate is None


def _tensors(name: str, args: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Return what is sent, and what is received into another tensor."""
    if name.startswith(("allreduce", "broadcast", "reduce")) and not name.startswith("reduce_scatter"):
        return _flat(args[0]), []  # in place
    return _flat(args[1]), _flat(args[0])


def _flat(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in _flat(part)]


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


GROUPS: tuple[GroupOf, ...] = (world_group, lambda: DeferredGroup(world_group()))

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
