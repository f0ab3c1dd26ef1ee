"""The plugins of one run: the named backend, every kernel plugin, the reference kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError
from pretrain.plugins.backend import Backend
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import cause, load_plugin
from pretrain.plugins.host.registration import register, removal_notices
from pretrain.plugins.host.spelling import check_spelling

if TYPE_CHECKING:
    import pluggy

    from pretrain.plugins.host.importing import Plugin


@dataclass(frozen=True, kw_only=True, slots=True)
class Plugins:
    """Plugins that take part in a run.

    Attributes:
        backend: the device that `--backend` names.
        provider: the distribution that brings it: "pretrain-cuda 0.1.0".
        members: every plugin in the order in which kernels are asked for: those of the group `pretrain.plugins`
            by name, the backend, the reference.
        notices: lines for the user about hooks that a later contract removes.
    """

    backend: Backend
    provider: str
    members: tuple[Plugin, ...]
    _manager: pluggy.PluginManager
    notices: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Name of the backend in messages: "backend 'cuda' (pretrain-cuda 0.1.0)"."""
        return f"backend '{self.backend.name}' ({self.provider})"

    def call(self, plugin: Plugin, hook: str, **arguments: object) -> list[Any]:
        """Call a hook of one member; return what its implementations answer, without None.

        Raises:
            BackendError: the hook raised.
        """
        return _call(self._manager, plugin, hook, arguments)


def load(backend_name: str) -> Plugins:
    """Import the named backend, every kernel plugin and the reference kernels; no other backend is imported.

    The device is checked separately: `readiness.require_device`.

    Raises:
        BackendError: the backend is not installed, registered twice or fails to import; or a plugin that takes part
            is broken. Without its kernels a run would silently be slower or have other losses.
    """
    backend = load_plugin(discovery.find_backend(backend_name))
    extras = [load_plugin(plugin) for plugin in discovery.installed_plugins()]
    return assemble(extras, backend, load_plugin(discovery.REFERENCE))


def load_alone(installed: discovery.Installed) -> Plugins:
    """Import one backend without the kernel plugins and the reference, to ask about its device.

    Raises:
        BackendError: as `load`.
    """
    return assemble([], load_plugin(installed))


def assemble(extras: list[Plugin], backend: Plugin, *last: Plugin) -> Plugins:
    """Register imported plugins and make the backend object.

    Raises:
        BackendError: a plugin breaks the contract of the hooks.
    """
    members = (*extras, backend, *last)
    manager = register(members)
    device = _backend(manager, backend)
    return Plugins(
        backend=device,
        provider=backend.installed.provider,
        members=members,
        notices=removal_notices(manager, members),
        _manager=manager,
    )


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
        right = isinstance(given, str) if attribute in strings else _are_strings(given)
        if not right:
            msg = f"{who}: {type(backend).__name__}.{attribute} must be {allowed}; see docs/writing-a-backend.md."
            raise BackendError(msg)


def _are_strings(given: Any) -> bool:
    return isinstance(given, tuple) and all(isinstance(part, str) and part for part in given)
