"""Functions by which the trainer reads checkpoints of other programs: `pretrain.checkpoint.foreign_checkpoints`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.convert.exchange.foreign import foreign_summary, require_fitting
from pretrain.tools.convert.formats.recognition import summary_of

if TYPE_CHECKING:
    from pathlib import Path

    from pretrain.checkpoint.contents import Loaded, Saved

__all__ = ["foreign_summary", "load", "require_fitting", "summary_of"]


def load(engine: Saved, path: Path, *, finetune: bool) -> Loaded:
    """Load another program's checkpoint; all ranks call it together. See `exchange.loading.load`."""
    from pretrain.tools.convert.exchange import loading  # noqa: PLC0415  megatron-core, which a launcher does without

    return loading.load(engine, path, finetune=finetune)
