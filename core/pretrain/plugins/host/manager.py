"""The plugins of one run: the named backend, every kernel plugin, the reference kernels."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy

from pretrain.distributions import Role
from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins import BACKENDS, CONTRACT, PLUGINS, PROJECT, hookspecs
from pretrain.plugins.backend import Backend
from pretrain.plugins.contract import removal_of
from pretrain.plugins.host import discovery
from pretrain.plugins.host.discovery import cause, load_plugin
from pretrain.recipe.sections.outputs import LOGGERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.distributions import Installed
    from pretrain.plugins.host.discovery import Plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """Plugins that take part in a run."""

    backend: Backend
    provider: str  # the backend's distribution: "pretrain-cuda 0.1.0"
    # In the order in which kernels are asked for: those of the group `pretrain.plugins` by name, the backend, the
    # reference.
    members: tuple[Plugin, ...]
    _manager: pluggy.PluginManager
    notices: tuple[str, ...] = ()  # about hooks that a later contract removes

    @property
    def label(self) -> str:
        """Name of the backend in messages: "backend 'cuda' (pretrain-cuda 0.1.0)"."""
        return f"backend '{self.backend.name}' ({self.provider})"

    def call(self, plugin: Plugin, hook: str, **arguments: object) -> list[Any]:
        """Call a hook of one member; return what its implementations answer, without None."""
        return _call(self._manager, plugin, hook, arguments)


def load(backend_name: str) -> Plugins:
    """Import the named backend, every kernel plugin and the reference kernels; no other backend is imported.

    A broken plugin is a BackendError: without its kernels a run would silently be slower or have other losses. The
    device is checked separately: `members.require_device`.
    """
    backend = load_plugin(discovery.find_backend(backend_name))
    extras = [load_plugin(plugin) for plugin in discovery.installed_plugins()]
    return assemble(extras, backend, load_plugin(discovery.REFERENCE))


def load_alone(installed: Installed) -> Plugins:
    """Import one backend without the kernel plugins and the reference, to ask about its device."""
    return assemble([], load_plugin(installed))


def assemble(extras: list[Plugin], backend: Plugin, *last: Plugin) -> Plugins:
    """Register imported plugins and make the backend object."""
    members = (*extras, backend, *last)
    manager = register(members)
    notices = [
        f"{plugin.installed.label} implements {caller.name}; {removal_of(caller.spec.function)}"
        for plugin in members
        for caller in manager.get_hookcallers(plugin.hooks) or ()
        if caller.spec and removal_of(caller.spec.function)
    ]
    return Plugins(
        backend=_backend(manager, backend),
        provider=backend.installed.provider,
        members=members,
        notices=tuple(notices),
        _manager=manager,
    )


def call_alone(plugin: Plugin, hook: str, **arguments: object) -> list[Any]:
    """Call a hook of a plugin that takes part in nothing else, as `Plugins.call`."""
    return _call(register([plugin]), plugin, hook, arguments)


def _call(manager: pluggy.PluginManager, plugin: Plugin, hook: str, arguments: dict[str, object]) -> list[Any]:
    # One plugin at a time: pluggy's list of answers does not name the plugins.
    others = [other for _, other in manager.list_name_plugin() if other is not plugin.hooks]
    try:
        return list(manager.subset_hook_caller(hook, others)(**arguments))
    except Exception as exc:
        msg = f"{plugin.installed.label} raised in {hook}: {cause(exc)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from exc


def _backend(manager: pluggy.PluginManager, plugin: Plugin) -> Backend:
    who = plugin.installed.label
    answers = _call(manager, plugin, "pretrain_backend", {})
    if len(answers) != 1 or not isinstance(answers[0], Backend):
        given = ", ".join(type(answer).__name__ for answer in answers) or "nothing"
        msg = f"{who}: pretrain_backend must return one pretrain.plugins.backend.Backend; it returns {given}."
        raise BackendError(msg)
    backend: Backend = answers[0]
    _require_attributes(who, backend)
    if backend.name != plugin.installed.name:
        msg = (
            f"{who}: its entry point is '{plugin.installed.name}', its Backend.name '{backend.name}'; make them equal."
        )
        raise BackendError(msg)
    check_spelling(who, backend)
    return backend


def _require_attributes(who: str, backend: Backend) -> None:
    strings = dict.fromkeys(("name", "device_type", "process_group"), "a string")
    tuples = dict.fromkeys(("exported_variables", "own_variables"), "a tuple of strings")
    for attribute, allowed in (strings | tuples).items():
        given = getattr(backend, attribute, None)
        # A string would pass as a tuple of letters, and most variables begin with one of them.
        is_tuple = isinstance(given, tuple) and all(isinstance(part, str) and part for part in given)
        if not (isinstance(given, str) if attribute in strings else is_tuple):
            msg = f"{who}: {type(backend).__name__}.{attribute} must be {allowed}; see docs/writing-a-backend.md."
            raise BackendError(msg)
    if not isinstance(backend.forkable, bool):
        msg = f"{who}: {type(backend).__name__}.forkable must be True or False; see docs/writing-a-backend.md."
        raise BackendError(msg)


HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("pretrain_"))
KERNEL_HOOKS = tuple(name for name in HOOKS if name not in {"pretrain_backend", "pretrain_logger"})


def register(plugins: Iterable[Plugin]) -> pluggy.PluginManager:
    """Return a pluggy manager that holds the plugins, or raise BackendError where one breaks the hooks' contract."""
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


def _check(manager: pluggy.PluginManager, plugin: Plugin) -> None:
    implemented = set()
    for caller in manager.get_hookcallers(plugin.hooks) or ():
        for impl in caller.get_hookimpls():
            if impl.plugin is not plugin.hooks or (impl.optionalhook and not caller.has_spec()):
                continue
            if not caller.has_spec():
                hint = did_you_mean(caller.name, HOOKS) or (
                    f" This is contract {'.'.join(map(str, CONTRACT))}: mark a hook of a later one "
                    "@hookimpl(optionalhook=True)."
                )
                raise _fault(plugin, f"implements '{caller.name}', which is not a hook.{hint}")
            if impl.hookwrapper or impl.wrapper or impl.tryfirst or impl.trylast:
                raise _fault(
                    plugin, f"marks {caller.name} with an option: hooks are called in a fixed order, unwrapped"
                )
            implemented.add(caller.name)
    for hook in HOOKS:
        if hook not in implemented and callable(inspect.getattr_static(plugin.hooks, hook, None)):
            raise _fault(plugin, f"has a function {hook} without the mark: put @hookimpl above it")
    _check_role(plugin, implemented)


def _check_role(plugin: Plugin, implemented: set[str]) -> None:
    """Check that every hook of a plugin is one that is called of plugins of its group."""
    role = plugin.installed.role
    if "pretrain_backend" in implemented and role not in {Role.BACKEND, Role.REFERENCE}:
        raise _fault(plugin, f"brings a device: its entry point belongs in the group {BACKENDS}")
    if "pretrain_logger" in implemented and role is not Role.LOGGER:
        raise _fault(plugin, f"brings a logger: its entry point belongs in the group {LOGGERS}")
    if role is Role.LOGGER and (kernels := implemented.intersection(KERNEL_HOOKS)):
        raise _fault(plugin, f"implements {min(kernels)}: entry points of kernels belong in the group {PLUGINS}")


def _fault(plugin: Plugin, what: str) -> BackendError:
    distribution = plugin.installed.distribution or "<its distribution>"
    return BackendError(
        f"{plugin.installed.label} {what}\n"
        f"Report it to its author (docs/hooks.md has every signature). To run without it: "
        f"pip uninstall {distribution}"
    )


def check_spelling(who: str, backend: Backend) -> None:
    """Check that no public name of the backend's class is a misspelt member of `Backend`: nothing would call it."""
    members = [name for name in (*dir(Backend), *Backend.__annotations__) if not name.startswith("_")]
    own = {name for base in type(backend).__mro__ if base not in Backend.__mro__ for name in vars(base)}
    for name in sorted(own.difference(members)):
        hint = "" if name.startswith("_") else did_you_mean(name, members, cutoff=0.8)
        if hint:
            msg = (
                f"{who}: {type(backend).__name__}.{name} is not a member of Backend, so that nothing calls it.{hint}\n"
                "A name of the backend's own begins with an underscore; docs/hooks.md has the members."
            )
            raise BackendError(msg)
