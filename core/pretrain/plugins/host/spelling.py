"""Names of a backend's class that nobody would ever call."""

from __future__ import annotations

from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins.backend import Backend


def check_spelling(who: str, backend: Backend) -> None:
    """Pass when the backend's class has no public name that looks like a member's and is none.

    Raises:
        BackendError: it has one, such as `suports`, which nobody would ever call.
    """
    members = [name for name in (*dir(Backend), *Backend.__annotations__) if not name.startswith("_")]
    own = {name for base in type(backend).__mro__ if base not in Backend.__mro__ for name in vars(base)}
    for name in sorted(own.difference(members)):
        hint = "" if name.startswith("_") else did_you_mean(name, members, cutoff=0.8)
        if hint:
            msg = (
                f"{who}: {type(backend).__name__}.{name} is no member of Backend, so that nothing calls it.{hint}\n"
                "A name of the backend's own begins with an underscore; docs/hooks.md has the members."
            )
            raise BackendError(msg)
