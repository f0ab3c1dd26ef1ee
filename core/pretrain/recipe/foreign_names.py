"""Names that other programs have for flags and keys, whose tables a tool has: imported only for an error."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def foreign_names() -> Any:
    """Return pretrain.tools.migrate.hints: `key_of_recipe(path, given)`, `flag_of_run(flag, values)`, `flag_of_build`.

    Each returns the equivalent of another program's key or flag, and empty text for an unknown one.
    """
    return import_module("pretrain.tools.migrate.hints")
