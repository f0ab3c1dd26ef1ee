"""Values that are worked out of several settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.tools.migrate.setting import Settings

if TYPE_CHECKING:
    from pretrain.tools.migrate.setting import Place


@dataclass(frozen=True, slots=True)
class Worked:
    """A key's value, worked out of settings.

    Attributes:
        value: plain data of a recipe; None leaves the key out.
        names: the settings that it was worked out of.
        note: for the comment beside the value.
        lost: name of a setting and the sentence that says what the value does not keep of it.
        place: where a file states it that has no settings of its own, for errors: a DeepSpeed file.
        idle: name of a setting and the sentence that says why the program itself takes nothing from it.
    """

    value: Any
    names: tuple[str, ...]
    note: str = ""
    lost: tuple[tuple[str, str], ...] = ()
    idle: tuple[tuple[str, str], ...] = ()
    place: Place | None = None


Function = Callable[[Settings], Worked | None]
