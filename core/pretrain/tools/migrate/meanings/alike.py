"""Tables in which many settings have one meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning


def alike(meaning: Meaning, names: str) -> dict[str, Meaning]:
    """Return a table of settings of one meaning.

    Args:
        meaning: of all of them.
        names: separated by blanks.
    """
    return dict.fromkeys(names.split(), meaning)
