"""Registration with pluggy. A hook that would never be called is an error."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import pluggy

from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins import BACKENDS, CONTRACT, PROJECT, hookspecs
from pretrain.plugins.contract import removal_of
from pretrain.plugins.host.discovery import Role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.plugins.host.importing import Plugin

HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("pretrain_"))


def register(plugins: Iterable[Plugin]) -> pluggy.PluginManager:
    """Return a pluggy manager that holds the plugins.

    Raises:
        BackendError: a hook is misspelt, unmarked, takes an argument that does not exist, or carries an option that
            would have no effect.
    """
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(hookspecs)
    for plugin in plugins:
        try:
            manager.register(plugin.hooks, name=plugin.installed.label)
        except pluggy.PluginValidationError as exc:
            detail = " ".join(str(exc).splitlines()[-1:])
            raise _fault(plugin, f"does not fit its hookspec: {detail}") from exc
        except ValueError as exc:
            raise _fault(plugin, "is registered twice: two entry points name the same module") from exc
        _check(manager, plugin)
    return manager


def removal_notices(manager: pluggy.PluginManager, plugins: Iterable[Plugin]) -> tuple[str, ...]:
    """Return one line for each hook that a plugin implements and a later contract removes."""
    return tuple(
        f"{plugin.installed.label} implements {caller.name}; {removal_of(caller.spec.function)}"
        for plugin in plugins
        for caller in manager.get_hookcallers(plugin.hooks) or ()
        if caller.spec and removal_of(caller.spec.function)
    )


def _check(manager: pluggy.PluginManager, plugin: Plugin) -> None:
    implemented = set()
    for caller in manager.get_hookcallers(plugin.hooks) or ():
        for impl in caller.get_hookimpls():
            if impl.plugin is not plugin.hooks or (impl.optionalhook and not caller.has_spec()):
                continue
            if not caller.has_spec():
                hint = did_you_mean(caller.name, HOOKS) or (
                    f" This is contract {'.'.join(map(str, CONTRACT))}: one of a later pretrain is marked "
                    "@hookimpl(optionalhook=True)."
                )
                raise _fault(plugin, f"implements '{caller.name}', which is not a hook.{hint}")
            if impl.hookwrapper or impl.wrapper or impl.tryfirst or impl.trylast:
                raise _fault(plugin, f"marks {caller.name} with an option: hooks are asked in a fixed order, unwrapped")
            implemented.add(caller.name)
    _check_unmarked(plugin, implemented)
    if "pretrain_backend" in implemented and plugin.installed.role is Role.KERNELS:
        raise _fault(plugin, f"brings a device: its entry point belongs into the group {BACKENDS}")


def _check_unmarked(plugin: Plugin, implemented: set[str]) -> None:
    for hook in HOOKS:
        if hook not in implemented and callable(inspect.getattr_static(plugin.hooks, hook, None)):
            raise _fault(plugin, f"has a function {hook} without the mark: put @hookimpl above it")


def _fault(plugin: Plugin, what: str) -> BackendError:
    distribution = plugin.installed.distribution or "<its distribution>"
    return BackendError(
        f"{plugin.installed.label} {what}\n"
        f"Report it to its author (docs/hooks.md has every signature). To run without it: "
        f"pip uninstall {distribution}"
    )
