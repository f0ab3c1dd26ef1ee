"""One execution of a module."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.tools.align.model_place import Place


@dataclass(slots=True)
class Visit:
    """One execution of a module.

    Attributes:
        place: of the module.
        micro_batch: of this rank in the step, from 0.
        batch_first: whether its tensors are [b, s, ...], not [s, b, ...].
        again: whether its activations are computed a second time, for the backward pass.
        calls: of each operation so far.
    """

    place: Place
    micro_batch: int
    batch_first: bool
    again: bool
    calls: Counter[str] = field(default_factory=Counter)
