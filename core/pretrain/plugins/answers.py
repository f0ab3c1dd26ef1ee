"""Asking every plugin for one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError
from pretrain.plugins.discovery import Role
from pretrain.plugins.offer import Decline, Offer

if TYPE_CHECKING:
    from pretrain.plugins.loading import Plugin
    from pretrain.plugins.manager import Plugins
    from pretrain.plugins.requests import Request

AUTO = "auto"
"""What a recipe writes to take the first offer; no kernel may be called so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """One kernel of one plugin: offered or declined."""

    plugin: Plugin
    answer: Offer | Decline

    @property
    def is_reference(self) -> bool:
        """Whether it is the last resort."""
        return self.plugin.installed.role is Role.REFERENCE

    @property
    def provider(self) -> str:
        """The plugin's distribution, and the library that does the work where the offer names one."""
        library = self.answer.provider if isinstance(self.answer, Offer) else ""
        return f"{self.plugin.installed.provider} ({library})" if library else self.plugin.installed.provider

    @property
    def label(self) -> str:
        """How messages call it: "'flash' (pretrain-cuda 0.1.0)"."""
        return f"'{self.answer.name}' ({self.provider})"


def ask(plugins: Plugins, request: Request) -> list[Proposal]:
    """Return what all plugins answer to a request, in the order of preference.

    Raises:
        BackendError: a hook raised, or answered with something that is no answer.
    """
    hook = f"pretrain_{request.operation}"
    return [
        Proposal(plugin=plugin, answer=answer)
        for plugin in plugins.members
        for given in plugins.call(plugin, hook, request=request)
        for answer in _checked(plugin, hook, given)
    ]


def _checked(plugin: Plugin, hook: str, given: Any) -> list[Offer | Decline]:
    answers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for answer in answers:
        fault = _fault(answer)
        if fault:
            msg = f"{plugin.installed.label} answers {hook} with {fault}.\nAllowed: Offer, Decline, several, or None."
            raise BackendError(msg)
    return answers


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
