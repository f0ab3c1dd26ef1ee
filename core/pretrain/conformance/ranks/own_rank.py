"""Rank of the current process, one of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from pretrain.conformance.subject import callable_of
from pretrain.plugins.offer import Offer

if TYPE_CHECKING:
    import torch

    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request


class DeclinedError(Exception):
    """The kernel does not take this request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One of the ranks.

    Attributes:
        subject: the backend under test.
        number: 0 or 1.
        device: this rank's.
    """

    subject: Subject
    number: int
    device: torch.device

    def build(self, kernel: Kernel, request: Request) -> Any:
        """Return the kernel's callable.

        Raises:
            DeclinedError: it declines the request, or has nothing for it.
        """
        if not self.subject.supports(request):
            msg = f"the device has no {request.dtype}"
            raise DeclinedError(msg)
        answer = self.subject.answer(kernel, request)
        if isinstance(answer, Offer):
            return callable_of(request, answer.build)
        raise DeclinedError("not offered for such a request" if answer is None else answer.reason)


def world_group() -> dist.ProcessGroup:
    """Return the group of both ranks."""
    group = dist.group.WORLD
    if group is None:
        msg = "torch.distributed is not initialized"
        raise RuntimeError(msg)
    return group
