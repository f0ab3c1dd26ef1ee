"""Choice of one kernel per operation: what all plugins propose, and reasons for those that are rejected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.distributions import Role
from pretrain.errors import BackendError, KernelError, did_you_mean
from pretrain.plugins.contract import keep
from pretrain.plugins.negotiation.kernel_table import KernelRow, Rejected
from pretrain.plugins.offer import Decline, Offer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.plugins.host.discovery import Plugin
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.requests import Request


AUTO = "auto"
"""Value of a recipe that takes the first offer; no kernel may have this name."""

RESERVED = "reference"
"""Name of the core's own kernels; a plugin's kernel may not have it."""

KINDS = {"attention": ("flash", "triangle", "softmax")}
"""Operation -> its kinds, which a recipe may write for any backend; elsewhere a plugin may have kinds of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """One kernel of one plugin: offered or declined."""

    plugin: Plugin
    answer: Offer | Decline

    @property
    def is_reference(self) -> bool:
        """True for the core's own kernel, which is taken last."""
        return self.plugin.installed.role is Role.REFERENCE

    @property
    def provider(self) -> str:
        """The plugin's distribution, and the library that does the work where the offer names one."""
        library = self.answer.provider if isinstance(self.answer, Offer) else ""
        return f"{self.plugin.installed.provider} ({library})" if library else self.plugin.installed.provider

    @property
    def names(self) -> tuple[str, ...]:
        """Values of the recipe that select it: its name, "distribution:name", its kind."""
        name, kind = self.answer.name, self.answer.kind
        return tuple(filter(None, (name, f"{self.plugin.installed.distribution}:{name}", kind)))

    @property
    def label(self) -> str:
        """Name in messages: "'flash' (pretrain-cuda 0.1.0)"."""
        return f"'{self.answer.name}' ({self.provider})"


def ask(plugins: Plugins, request: Request) -> list[Proposal]:
    """Return what all plugins answer to a request, in the order of preference."""
    hook = f"pretrain_{request.operation}"
    return [
        Proposal(plugin=plugin, answer=answer)
        for plugin in plugins.members
        for given in plugins.call(plugin, hook, request=request)
        for answer in _checked(plugin, request, given)
    ]


def _checked(plugin: Plugin, request: Request, given: Any) -> list[Offer | Decline]:
    answers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    faults = [fault for answer in answers if (fault := _fault(answer) or _misnamed(answer, plugin, request))]
    names = [answer.name for answer in answers] if not faults else []
    faults += [f"two kernels called '{name}'" for name in dict.fromkeys(names) if names.count(name) > 1]
    if faults:
        msg = (
            f"{plugin.installed.label} answers pretrain_{request.operation} with {faults[0]}.\n"
            "Allowed: Offer, Decline, several with a name each, or None."
        )
        raise BackendError(msg)
    return [keep(answer, request, plugin.contract) for answer in answers]


def _misnamed(answer: Offer | Decline, plugin: Plugin, request: Request) -> str:
    is_reference = plugin.installed.role is Role.REFERENCE
    if answer.name == RESERVED and not is_reference:
        return f"a kernel called '{RESERVED}', which recipes use for the core's"
    if ":" in answer.name:
        return f"a kernel called '{answer.name}'; in a recipe the colon separates distribution and kernel"
    kinds = KINDS.get(request.operation, ())
    if answer.kind and kinds and answer.kind not in kinds:
        hint = did_you_mean(answer.kind, kinds)
        return f"'{answer.name}' of kind '{answer.kind}', not one of: {', '.join(kinds)}.{hint}".rstrip(".")
    return ""


def _fault(answer: Any) -> str:
    if not isinstance(answer, Offer | Decline):
        return f"{type(answer).__name__}: {answer!r:.80}"
    if not answer.name or answer.name == AUTO:
        return f"a kernel called '{answer.name}'; a kernel needs a name other than '{AUTO}'"
    if isinstance(answer, Decline) and not answer.reason:
        return f"a Decline of '{answer.name}' without a reason"
    if isinstance(answer, Offer) and not callable(answer.build):
        return f"an Offer of '{answer.name}' whose build is {type(answer.build).__name__}, not callable"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelChoice:
    """Kernel chosen for one operation."""

    request: Request
    taken: Proposal  # whose answer is `offer`
    offer: Offer
    proposals: tuple[Proposal, ...]  # all, the taken one among them
    wanted: str  # by the recipe: "auto", a kernel's name or a kind

    @property
    def row(self) -> KernelRow:
        """The line of the kernel table."""
        return KernelRow(
            operation=self.request.key,
            kernel=self.offer.name,
            kind=self.offer.kind,
            provider=self.taken.provider,
            request=self.request.to_json(),
            rejected=tuple(self._why_not(other) for other in self.proposals if other is not self.taken),
        )

    @property
    def names_the_kernel(self) -> bool:
        """True if the recipe names this kernel, and not only its kind."""
        return self.wanted in self.taken.names and self.wanted != self.offer.kind

    def _why_not(self, other: Proposal) -> Rejected:
        if isinstance(other.answer, Decline):
            why = f"declined: {other.answer.reason}"
        elif not _fits(other, self.wanted):
            why = f"offered, but the recipe names '{self.wanted}'"
        elif other.is_reference and not self.taken.is_reference:
            why = "offered, the reference comes last"
        else:
            why = "offered, comes later in the order"
        return Rejected(provider=other.provider, kernel=other.answer.name, kind=other.answer.kind, why=why)


def choose(
    plugins: Plugins, requests: Sequence[Request], chosen: Mapping[str, str], fallback: str
) -> list[KernelChoice]:
    """Choose without building: what `negotiate` takes, in the order in which it is built."""
    operations = [request.key for request in requests]
    if len(set(operations)) != len(operations):
        msg = f"several requests for one operation: {sorted(operations)}"
        raise ValueError(msg)
    # Attention comes first, because it decides whether a softmax kernel is needed; that is built before it.
    ordered = sorted(requests, key=lambda request: request.operation != "attention")
    choices: list[KernelChoice] = []
    for request in ordered:
        key = request.key if request.key in chosen else request.operation
        wanted = chosen.get(key, AUTO)
        if request.operation != "softmax" or _needs_softmax(choices, wanted):
            choices.append(_choose(request, ask(plugins, request), wanted, key))
    choices.sort(key=lambda choice: choice.request.operation != "softmax")
    if fallback == "forbid":
        _refuse_reference(choices)
    return choices


def _needs_softmax(choices: list[KernelChoice], wanted: str) -> bool:
    """Say whether the chosen attention may use a softmax kernel; if not, the recipe may not name one."""
    attention = next((choice.offer for choice in choices if choice.request.operation == "attention"), None)
    if attention is None or attention.kind not in {"flash", "triangle"}:
        return True
    if wanted != AUTO:
        msg = (
            f"kernels.softmax: '{wanted}' has no effect: attention is '{attention.name}' ({attention.kind}), which has "
            "a softmax of its own.\nDelete the key, or give kernels.attention: softmax."
        )
        raise KernelError(msg)
    return False


def _choose(request: Request, proposals: list[Proposal], wanted: str, key: str) -> KernelChoice:
    fitting = [proposal for proposal in proposals if _fits(proposal, wanted)]
    for proposal in fitting:
        if isinstance(proposal.answer, Offer):
            return KernelChoice(
                request=request, taken=proposal, offer=proposal.answer, proposals=tuple(proposals), wanted=wanted
            )
    if wanted == AUTO:
        msg = f"no kernel for {request.key} on {request.device_type}.{_declines(proposals)}"
        raise KernelError(msg)
    there = _offered([proposal for proposal in proposals if isinstance(proposal.answer, Offer)])
    if key != request.key:
        there += f" Give kernels.{request.key}: auto, or one of them."
    if fitting:
        of_role = f" as {request.key}" * (key != request.key)
        msg = f"kernels.{key}: '{wanted}' cannot serve this recipe{of_role}.{_declines(fitting)}\n{there}"
    else:
        known = {word for proposal in proposals for word in proposal.names}
        hint = did_you_mean(wanted, sorted(known | {AUTO}))
        msg = f"kernels.{key}: no plugin has a kernel or kind '{wanted}'.\n{there}{hint}"
    raise KernelError(msg)


def _fits(proposal: Proposal, wanted: str) -> bool:
    return wanted == AUTO or wanted in proposal.names


def _offered(offers: list[Proposal]) -> str:
    plain = [offer.answer.name for offer in offers]
    # A name that two distributions offer is shown with its distribution.
    names = [offer.names[plain.count(offer.answer.name) > 1] for offer in offers]
    kinds = dict.fromkeys(offer.answer.kind for offer in offers if offer.answer.kind)
    return f"Offered here: {', '.join(names) or 'nothing'}" + (f"; kinds: {', '.join(kinds)}." if kinds else ".")


def _declines(proposals: Iterable[Proposal]) -> str:
    lines = [
        f"\n  {proposal.label} declines: {proposal.answer.reason}"
        for proposal in proposals
        if isinstance(proposal.answer, Decline)
    ]
    return "".join(lines)


def _refuse_reference(choices: list[KernelChoice]) -> None:
    served = [choice for choice in choices if choice.taken.is_reference and not choice.names_the_kernel]
    if not served:
        return
    lines = [f"\n{choice.request.key}:{_declines(choice.proposals) or ' no plugin offers it'}" for choice in served]
    msg = (
        f"kernels.fallback is 'forbid', but only the reference serves these operations.{''.join(lines)}\n"
        "Set kernels.fallback=allow, or name the reference for each of them: "
        f"kernels.{served[0].request.key}=reference"
    )
    raise KernelError(msg)
