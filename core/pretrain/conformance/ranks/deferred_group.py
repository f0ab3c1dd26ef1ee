"""Process group that communicates as late as allowed, in `wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from torch import Tensor

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
                msg = "a tensor was written to while its communication was under way"
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
