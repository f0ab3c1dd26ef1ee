"""The backend under test and its kernels."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pretrain.plugins.host import discovery, manager
from pretrain.plugins.host.discovery import Installed, Role
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.host.members import take_device
from pretrain.plugins.negotiation.choosing import ask
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import CollectivesRequest
from pretrain.plugins.signatures import SIGNATURES, by_position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.choosing import Proposal
    from pretrain.plugins.requests import Request


@dataclass(frozen=True, slots=True)
class Kernel:
    """Name of a kernel in the names of tests."""

    operation: str
    plugin: str
    name: str

    def __str__(self) -> str:
        return f"{self.plugin}-{self.name}"

    def made(self, proposal: Proposal) -> bool:
        """Say whether a proposal is for this kernel."""
        return (proposal.plugin.installed.name, proposal.answer.name) == (self.plugin, self.name)


@dataclass(frozen=True, slots=True)
class Subject:
    """A backend under test.

    Attributes:
        name: the argument of `load_subject`.
        plugins: the backend, the kernel plugins that are installed, the reference.
    """

    name: str
    plugins: Plugins

    @property
    def device(self) -> torch.device:
        """The first device; made the current one at the first access."""
        return _first_device(self.name)

    def kernels(self, requests: Iterable[Request]) -> list[Kernel]:
        """Return every kernel that a run could get for one of the requests: those of plugins, and the reference's."""
        found = [
            Kernel(request.operation, proposal.plugin.installed.name, proposal.answer.name)
            for request in requests
            for proposal in self.proposals(request)
        ]
        return list(dict.fromkeys(found))

    def supports(self, request: Request) -> bool:
        """Say whether the device has the request's dtype."""
        return self.plugins.backend.supports(request.dtype)

    def proposal(self, kernel: Kernel, request: Request) -> Proposal | None:
        """Return what the kernel's plugin answers for it; None where it does not name it."""
        return next((proposal for proposal in self.proposals(request) if kernel.made(proposal)), None)

    def answer(self, kernel: Kernel, request: Request) -> Offer | Decline | None:
        """Return the plugin's answer for the kernel; None where it does not name it."""
        proposal = self.proposal(kernel, request)
        return None if proposal is None else proposal.answer

    def takes(self, kernel: Kernel, request: Request) -> bool:
        """Say whether the kernel is offered for a request, and the device has its dtype."""
        return self.supports(request) and isinstance(self.answer(kernel, request), Offer)

    def build(self, kernel: Kernel, request: Request) -> Any:
        """Return the kernel for a request that it takes, called by the signature's names; fail where it declines."""
        answer = self.answer(kernel, request)
        if isinstance(answer, Offer):
            return callable_of(request, answer.build)
        reason = "it is not named" if answer is None else answer.reason
        pytest.fail(f"{kernel} took this request when the tests were collected, and declines it now: {reason}")

    def proposals(self, request: Request) -> list[Proposal]:
        """Return what every plugin answers; the request is put onto the device of the backend."""
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


@lru_cache
def load_subject(name: str) -> Subject:
    """Load a backend by the value of `--backend`, or by the dotted module, or "module:object", of its plugin.

    Raises:
        BackendError: it is not installed or cannot be imported.
    """
    return Subject(name, _plugins_of(name) if "." in name else manager.load(name))


@lru_cache
def _first_device(name: str) -> torch.device:
    return take_device(load_subject(name).plugins, 0)


def _plugins_of(target: str) -> Plugins:
    module, _, attribute = target.partition(":")
    hooks = importlib.import_module(module)
    backend = (getattr(hooks, attribute) if attribute else hooks).pretrain_backend()
    installed = Installed(role=Role.BACKEND, name=backend.name, target=target, distribution=module, version="")
    return manager.assemble([], load_plugin(installed), load_plugin(discovery.REFERENCE))


def oracle(request: Request) -> Any:
    """Return the reference kernel for the same request in float64 on the CPU."""
    in_float64: dict[str, Any] = {"device_type": "cpu", "dtype": torch.float64}
    if hasattr(request, "weight_dtype"):
        in_float64["weight_dtype"] = torch.float64
    hooks = load_plugin(discovery.REFERENCE).hooks
    answer = getattr(hooks, f"pretrain_{request.operation}")(replace(request, **in_float64))
    answers: Sequence[Offer | Decline] = [answer] if isinstance(answer, Offer | Decline) else answer
    return next(answer for answer in answers if isinstance(answer, Offer)).build({})
