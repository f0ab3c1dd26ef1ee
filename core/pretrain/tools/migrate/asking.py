"""Values of sources that only running them would tell."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pretrain.tools.migrate.setting import Asked

UNKNOWN = "(a value of the environment)"
"""Value of a setting that is not known, and of which a recipe takes nothing."""


def require_known(values: Iterable[Asked], flags: Iterable[Asked]) -> None:
    """Ask for all values at once.

    Args:
        values: of settings that a recipe needs.
        flags: what may be flags themselves.

    Raises:
        MigrateError: there are any.
    """
    asked = _first_of_each(values)
    of_flags = {name: one for name, one in _first_of_each(flags).items() if name not in asked}
    if not asked and not of_flags:
        return
    lines = [f"{one.place}: {name} is not known: {one.why}" for name, one in asked.items()]
    lines += [f"{one.place}: {name} may be flags, and is not known: {one.why}" for name, one in of_flags.items()]
    options = [f"--define {shlex.quote(f'{name}=VALUE')}" for name in asked]
    options += [f"--define {shlex.quote(f'{name}=')}" for name in of_flags]
    raise MigrateError("\n".join([*lines, f"Nothing here tells it. Give {' '.join(options)}"]))


def _first_of_each(asked: Iterable[Asked]) -> dict[str, Asked]:
    found: dict[str, Asked] = {}
    for one in asked:
        found.setdefault(one.name, one)
    return found
