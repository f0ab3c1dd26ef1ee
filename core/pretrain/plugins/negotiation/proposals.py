"""Proposals of all plugins for one kernel request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins.contract import keep
from pretrain.plugins.host.discovery import Role
from pretrain.plugins.offer import Decline, Offer

if TYPE_CHECKING:
    from pretrain.plugins.host.importing import Plugin
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
    """Return what all plugins answer to a request, in the order of preference.

    Raises:
        BackendError: a hook raised, or returned something else than an answer.
    """
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
        return f"a kernel called '{answer.name}'; in a recipe the colon stands between distribution and kernel"
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
