"""Answers of a backend's kernels to the kit's cases: accepted and declined requests."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.conformance.cases import label
from pretrain.plugins.offer import Absent, Decline

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.conformance.cases import Case
    from pretrain.conformance.subject import Kernel, Subject
    from pretrain.plugins.requests import Request


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of one kernel to many requests.

    Attributes:
        kernel: the kernel that answered.
        provider: the distribution, and the library that does the work.
        taken: requests that it takes.
        declined: request -> the reason; requests for which its plugin does not name it are left out.
    """

    kernel: Kernel
    provider: str
    taken: tuple[Request, ...]
    declined: dict[Request, str]

    @property
    def absent(self) -> str:
        """Reason that the kernel is absent on this machine; "" if it is present or no decline says so."""
        if self.taken:
            return ""
        return next((reason for reason in self.declined.values() if isinstance(reason, Absent)), "")

    def summary(self) -> str:
        """Return one line, and one for each reason with the number of requests that it declined."""
        asked = len(self.taken) + len(self.declined)
        lines = [
            f"{self.kernel.operation} {self.kernel} ({self.provider}): takes {len(self.taken)} of {asked} requests"
        ]
        reasons = Counter(str(reason) for reason in self.declined.values())
        lines += [f"    declines {count}: {reason}" for reason, count in reasons.most_common()]
        return "\n".join(lines)

    def fault(self) -> str:
        """Return the failure message of a kernel that takes no request."""
        first = next(iter(self.declined), None)
        example = "" if first is None else f"\nOne of the requests: {label(first)}"
        return (
            f"nothing was compared: the kernel declines every request of the kit.\n{self.summary()}{example}\n"
            "Take one of them, or tell the kit's authors what it takes. A kernel that cannot be on this machine says "
            "so by a reason that is `Absent` (pretrain.plugins.offer)."
        )


def answers(subject: Subject, kernel: Kernel, requests: Iterable[Request]) -> Answers:
    """Ask for every request that the device has the dtype for."""
    taken, declined, provider = [], {}, kernel.plugin
    for request in dict.fromkeys(requests):
        if not subject.supports(request):
            continue
        proposal = subject.proposal(kernel, request)
        if proposal is None:
            continue
        if isinstance(proposal.answer, Decline):
            declined[request] = proposal.answer.reason
        else:
            taken.append(request)
        provider = proposal.provider
    return Answers(kernel, provider, tuple(taken), declined)


def accepted(subject: Subject, kernel: Kernel, listed: Iterable[Case]) -> list[Request]:
    """Return the first request of every case that the kernel takes; cases without one are left out."""
    device_type = subject.plugins.backend.device_type
    requests = [
        next((request for request in case.candidates if subject.takes(kernel, request)), None)
        for whole in listed
        for case in whole.on(device_type)
    ]
    return list(dict.fromkeys(request for request in requests if request is not None))
