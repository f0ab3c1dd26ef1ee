"""A small training whose arguments the tests extend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.script import read_arguments

if TYPE_CHECKING:
    from pretrain.tools.migrate.migration import Migration

SIZES = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --lr 1e-4"
BATCH = "--micro-batch-size 2 --global-batch-size 8"
FILES = "--vocab-file v.json --merge-file m.txt"


def migrated(arguments: str, *, common: str = f"{SIZES} {BATCH} {FILES} --data-path d", **wishes) -> Migration:
    """Migrate the small training with more arguments.

    Args:
        arguments: after the common ones.
        common: the small training's own.
        wishes: as `MigrateOptions` has them.
    """
    return migrate([read_arguments(f"{common} {arguments}")], MigrateOptions(**wishes))


def line_of(found: Migration, written: str) -> tuple[str, str]:
    """Return the list in which a setting stands, with its text; an error unless it stands in one."""
    ((fate, text),) = [(outcome.fate, outcome.text) for outcome in found.outcomes if outcome.written == written]
    return fate, text
