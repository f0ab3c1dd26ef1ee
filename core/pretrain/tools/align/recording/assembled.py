"""Construction of a recording on a rank, part by part in the order of their dependencies."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.plugins.negotiation.kernels import naming_kernels
from pretrain.report.timers import PhaseTimers
from pretrain.tools.align.recording.manifest import write_manifest
from pretrain.tools.align.recording.recorder import Recorder
from pretrain.tools.align.recording.taps import Taps
from pretrain.training.progress import BatchSizes, Progress
from pretrain.training.rank_setup import RankSetup
from pretrain.training.trained_model import load_weights
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.engine.protocol import Batch
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A recording that can begin.

    Attributes:
        recipe: what is trained.
        layout: sizes of the parallel groups.
        recorder: of this rank.
        batches: its micro-batches; None where its stages read none.
    """

    recipe: Recipe
    layout: Layout
    recorder: Recorder
    batches: Iterator[Batch] | None

    def run(self, steps: int) -> None:
        """Take and record the steps."""
        batch = BatchSizes.of(self.recipe).at(0)
        self.recorder.record(self.batches, steps, batch, self.layout.num_microbatches(batch))


@contextmanager
def assembled(
    recipe: Recipe, plugins: Plugins, world: World, folder: Path, *, positions: int, checkpoint: str | None
) -> Iterator[Recording]:
    """Build engine, data and recorder on this rank, and take everything down again afterwards; see `record`."""
    setup = RankSetup.of(recipe, plugins, world)
    taps = Taps()
    with groups.joined(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes):
        engine, kernels = build_engine(
            recipe,
            plugins,
            setup.tokenizer.vocab_size,
            setup.device,
            click.echo if world.rank == 0 else _ignore,
            wrap_kernel=taps.around,
        )
        with naming_kernels(kernels):
            if checkpoint is not None:
                load_weights(engine, Path(checkpoint))
            progress = Progress()
            data, _ = TrainingData.of(setup, engine, progress).resume(progress)
            if world.rank == 0:
                write_manifest(
                    folder, recipe, kernels.table, setup.layout, setup.tokenizer.vocab_size, positions=positions
                )
            yield Recording(
                recipe=recipe,
                layout=setup.layout,
                recorder=Recorder(engine, taps, folder, positions=positions),
                batches=data.training(0, PhaseTimers()),
            )
        engine.close()


def _ignore(_text: str) -> None:
    """Show nothing: rank 0 does."""
