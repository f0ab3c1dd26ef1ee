"""This rank's micro-batches at the training's position, which may go back."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pretrain.engine.protocol import Batch
    from pretrain.training.progress import Progress


class StepBatches:
    """The micro-batches that follow a progress.

    Attributes:
        following: the next ones; None where this rank's stages read no data.
    """

    def __init__(self, open_at: Callable[[Progress], Generator[Batch] | None], progress: Progress) -> None:
        """Open the data at a progress; `open_at` may update its blend."""
        self._open_at = open_at
        self.following = open_at(progress)

    def pass_over(self, num_microbatches: int) -> None:
        """Read so many micro-batches, and drop them."""
        for _ in islice(self.following or (), num_microbatches):
            pass

    def go_back(self, progress: Progress) -> None:
        """End the workers that read ahead, and open the data at an earlier progress."""
        if self.following is not None:
            self.following.close()
        self.following = self._open_at(progress)
