"""Spelling of a backend's member names."""

from __future__ import annotations

from pretrain.errors import BackendError, did_you_mean
from pretrain.plugins.backend import Backend


def check_spelling(who: str, backend: Backend) -> None:
    """Check that no public name of the backend's class is a misspelt member of `Backend`.

    Raises:
        BackendError: it has one, such as `suports`, which would never be called.
    """
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
