"""The backend under test and its kernels."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import pytest

from pretrain.conformance.cases import label
from pretrain.distributions import Installed, Role
from pretrain.plugins.host import discovery, manager
from pretrain.plugins.host.discovery import load_plugin
from pretrain.plugins.host.members import take_device
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Absent, Decline, Offer
from pretrain.plugins.requests import CollectivesRequest
from pretrain.plugins.signatures import SIGNATURES, by_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import torch

    from pretrain.conformance.cases import Case
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.choosing import Proposal
    from pretrain.plugins.requests import Request


@dataclass(frozen=True, slots=True)
class Kernel:
    """Name of a kernel in the names of tests."""

    operation: str
    plugin: str
    name: str

    @classmethod
    def of(cls, request: Request, proposal: Proposal) -> Kernel:
        """Return the kernel that a plugin proposes for a request."""
        return cls(request.operation, proposal.plugin.installed.name, proposal.answer.name)

    def __str__(self) -> str:
        return f"{self.plugin}-{self.name}"


@dataclass(frozen=True)  # no slots: the device is kept
class Subject:
    """A backend under test, with the kernel plugins that are installed, and the reference."""

    name: str  # the argument of `load_subject`
    plugins: Plugins

    @cached_property
    def device(self) -> torch.device:
        """The first device; made the current one at the first access."""
        return take_device(self.plugins, 0)

    def kernels(self, requests: Iterable[Request]) -> list[Kernel]:
        """Return every kernel that a run could get for one of the requests: those of plugins, and the reference's."""
        found = (Kernel.of(request, proposal) for request in requests for proposal in self.proposals(request))
        return list(dict.fromkeys(found))

    def supports(self, request: Request) -> bool:
        """Say whether the device has the request's dtype."""
        return self.plugins.backend.supports(request.dtype)

    def answer(self, kernel: Kernel, request: Request) -> Offer | Decline | None:
        """Return the plugin's answer for the kernel; None where it does not name it."""
        return next((each.answer for each in self.proposals(request) if Kernel.of(request, each) == kernel), None)

    def takes(self, kernel: Kernel, request: Request) -> bool:
        """Say whether the kernel is offered for a request, and the device has its dtype."""
        return self.supports(request) and isinstance(self.answer(kernel, request), Offer)

    def build(self, kernel: Kernel, request: Request) -> Any:
        """Return the kernel for a request that it takes, called by the signature's names; fail where it declines."""
        answer = self.answer(kernel, request)
        if isinstance(answer, Offer):
            return callable_of(request, answer.build)
        reason = "its plugin no longer names it" if answer is None else answer.reason
        pytest.fail(f"{kernel} took this request when the tests were collected and declines it now: {reason}")

    def proposals(self, request: Request) -> list[Proposal]:
        """Return every plugin's answers; the request is put onto the device of the backend."""
        return _proposals(self.name, request)


def callable_of(request: Request, build: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what `Offer.build` or `Offer.fake` makes; of an operation with a signature, called by position."""
    built = build({})
    return by_position(request.operation, built) if request.operation in SIGNATURES else built


@cache
def _proposals(name: str, request: Request) -> list[Proposal]:
    plugins = load_subject(name).plugins
    return ask(plugins, placed(plugins, request))


def placed(plugins: Plugins, request: Request, device_name: str = "") -> Request:
    """Return a request put onto the device of a backend; with a name, onto the device of that name."""
    where: dict[str, Any] = {"device_type": plugins.backend.device_type, "device_name": device_name}
    if isinstance(request, CollectivesRequest):
        where["process_group"] = plugins.backend.process_group
    return replace(request, **where)


@cache
def load_subject(name: str) -> Subject:
    """Load a backend by the value of `--backend`, or by the dotted module, or "module:object", of its plugin."""
    return Subject(name, _plugins_of(name) if "." in name else manager.load(name))


def _plugins_of(target: str) -> Plugins:
    module, _, attribute = target.partition(":")
    hooks = importlib.import_module(module)
    backend = (getattr(hooks, attribute) if attribute else hooks).pretrain_backend()
    installed = Installed(role=Role.BACKEND, name=backend.name, target=target, distribution=module, version="")
    return manager.assemble([], load_plugin(installed), load_plugin(discovery.REFERENCE))


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers of one kernel to many requests."""

    kernel: Kernel
    provider: str  # the distribution, and the library that does the work
    taken: tuple[Request, ...]
    declined: Mapping[Request, str]  # the reasons; requests for which its plugin does not name it are left out

    @property
    def absent(self) -> str:
        """The reason that the kernel is absent on this machine; "" if it is present or no decline says so."""
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
            "Accept one of them, or tell the kit's authors what the kernel accepts. If the kernel cannot run on this "
            "machine, decline with `Absent` (pretrain.plugins.offer) as the reason."
        )


def answers(
    plugins: Plugins, requests: Iterable[Request], proposals: Callable[[Request], list[Proposal]]
) -> list[Answers]:
    """Return each kernel's answers, of the proposals for every request. A dtype that the device lacks is declined."""
    taken: dict[Kernel, list[Request]] = {}
    declined: dict[Kernel, dict[Request, str]] = {}
    providers: dict[Kernel, str] = {}
    for request in requests:
        lacks_dtype = "" if plugins.backend.supports(request.dtype) else f"the device has no {request.dtype}"
        for proposal in proposals(request):
            kernel = Kernel.of(request, proposal)
            providers[kernel] = proposal.provider
            reason = proposal.answer.reason if isinstance(proposal.answer, Decline) else lacks_dtype
            if reason:
                declined.setdefault(kernel, {})[request] = reason
            else:
                taken.setdefault(kernel, []).append(request)
    kernels = sorted(providers, key=str)
    return [Answers(each, providers[each], tuple(taken.get(each, ())), declined.get(each, {})) for each in kernels]


def accepted(subject: Subject, kernel: Kernel, listed: Iterable[Case]) -> list[Request]:
    """Return the first request of every case that the kernel takes; cases without one are left out."""
    device_type = subject.plugins.backend.device_type
    requests = [
        next((request for request in case.candidates if subject.takes(kernel, request)), None)
        for whole in listed
        for case in whole.on(device_type)
    ]
    return list(dict.fromkeys(request for request in requests if request is not None))
