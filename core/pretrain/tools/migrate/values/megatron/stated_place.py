"""Lines that state settings, for errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Settings


def place_of(settings: Settings, name: str) -> str:
    """Return "train.sh:24: --num-layers"; of a default the flag alone."""
    found = settings.setting(name)
    if found is None:
        return name
    return found.written if found.place is None else f"{found.place}: {found.written}"
