"""`pretrain backends`: installed backends, their availability, and how to install the others."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import click

from pretrain.distributions import registered_twice
from pretrain.errors import BackendError
from pretrain.plugins.backend import Available
from pretrain.plugins.host import discovery
from pretrain.plugins.host.discovery import load_plugin
from pretrain.plugins.host.manager import load_alone, register
from pretrain.plugins.host.members import availability
from pretrain.report.plain_text import columns, indented

if TYPE_CHECKING:
    from pretrain.distributions import Installed


@click.command(name="backends")
def command() -> None:
    """List every backend: version, provider, and whether it is available or why not.

    A broken plugin is a line of the list, with its error.
    """
    installed = discovery.installed_backends()
    rows = [_backend(name, list(found)) for name, found in groupby(installed, key=lambda backend: backend.name)]
    names = {backend.name for backend in installed}
    missing = [name for name in discovery.FIRST_PARTY if name not in names]
    rows += [(name, "-", _absent(name)) for name in missing]
    click.echo("\n".join(columns([("backend", "provider", "device"), *rows])))
    extras = [(plugin.name, plugin.provider, _kernels(plugin)) for plugin in discovery.installed_plugins()]
    if extras:
        click.echo()
        click.echo("\n".join(columns([("plugin", "provider", "kernels for any backend"), *extras])))
    for line in discovery.unread_groups():
        click.echo("\n" + "\n".join(indented(line, 0)))


def _backend(name: str, found: list[Installed]) -> tuple[str, str, str]:
    if len(found) > 1:
        return name, "-", f"not usable: {registered_twice(found)}"
    return name, found[0].provider, _device(found[0])


def _absent(name: str) -> str:
    in_checkout, by_wheel = discovery.how_to_get(name)
    return f"not installed: {in_checkout} (in a checkout)\nor: {by_wheel} (with a wheel of `make build`)"


def _device(installed: Installed) -> str:
    try:
        answer = availability(load_alone(installed))
    except BackendError as error:
        return _without_label(str(error), installed)
    if isinstance(answer, Available):
        return f"available: {answer.detail}" if answer.detail else "available"
    return f"not available: {answer.reason}\n{answer.remedy}".rstrip()


def _kernels(installed: Installed) -> str:
    try:
        plugin = load_plugin(installed)
        callers = register([plugin]).get_hookcallers(plugin.hooks) or []
    except BackendError as error:
        return _without_label(str(error), installed)
    return ", ".join(sorted(caller.name.removeprefix("pretrain_") for caller in callers)) or "none"


def _without_label(message: str, installed: Installed) -> str:
    """Drop values that the first two columns show already."""
    return message.removeprefix(installed.label).lstrip(": ")
