"""Names that other programs have for flags and keys, whose tables a tool has: imported only for an error."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Sequence


class ForeignNames(Protocol):
    """Functions of pretrain.tools.migrate.hints for error messages."""

    def key_of_recipe(self, path: str, given: Any) -> str:
        """Return the equivalent of another program's key in a recipe; empty for an unknown one."""

    def flag_of_run(self, flag: str, values: Sequence[str] = ()) -> str:
        """Return the equivalent in `pretrain run` of another program's flag; empty for an unknown one."""

    def flag_of_build(self, flag: str) -> str:
        """Return the equivalent in `pretrain data build` of another program's flag; empty for an unknown one."""


def foreign_names() -> ForeignNames:
    """Return the tool."""
    return cast("ForeignNames", import_module("pretrain.tools.migrate.hints"))
