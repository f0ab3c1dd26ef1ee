"""Records an engine's steps on one rank."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.checkpoint import storage
from pretrain.conformance.compared_part import evenly
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.plugins.negotiation.kernels import naming_kernels
from pretrain.report.timers import PhaseTimers
from pretrain.tools.align.recording.folder import RankPlace, weights_folder, write_manifest
from pretrain.tools.align.recording.sink import Samples, Sink
from pretrain.tools.align.recording.taps import Taps
from pretrain.tools.align.recording.visits import Visits
from pretrain.training.progress import BatchSizes, Progress
from pretrain.training.rank_setup import RankSetup
from pretrain.training.trained_model import load_weights
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from pretrain.engine.protocol import Batch, Engine, Step
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout


class StepRecorder:
    """Recorder of one rank; all ranks call its methods together."""

    def __init__(self, engine: Engine, taps: Taps, folder: Path, *, positions: int) -> None:
        """Watch the model of an engine that was built with these taps.

        Args:
            engine: whose steps are recorded.
            taps: around its kernels.
            folder: of the recording, which exists.
            positions: of each sequence that are recorded at the most.
        """
        self._engine, self._taps, self._folder = engine, taps, folder
        model = engine.recipe.model
        self.place = RankPlace(
            rank=dist.get_rank(),
            tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
            tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
            data_rank=parallel_state.get_data_parallel_rank(),
            data_size=parallel_state.get_data_parallel_world_size(),
            pipeline_rank=parallel_state.get_pipeline_model_parallel_rank(),
            seq_length=model.seq_length,
            is_gated=model.activation == "swiglu",
        )
        self._sink = taps.sink = Sink(folder, self.place, evenly(model.seq_length, positions))
        self._visits = taps.visits = Visits(engine.models, model.num_layers, self._sink)
        self._steps: list[dict[str, Any]] = []
        self._consumed = 0

    def record(self, batches: Iterator[Batch] | None, steps: int, batch: int, num_microbatches: int) -> None:
        """Take and record steps.

        Args:
            batches: of this rank; None where the engine reads none.
            steps: their number.
            batch: samples of a step over all ranks.
            num_microbatches: of this rank in a step.
        """
        samples = None if batches is None else Samples(batches, self.place.data_rank, self.place.data_size)
        self._save(0)
        for number in range(1, steps + 1):
            self._visits.begin_step()
            self._sink.step = self._taps.step = number
            if samples is not None:
                samples.begin_step(number)
            rate = self._engine.learning_rate
            step = self._engine.train_step(samples, num_microbatches)
            self._taps.finish_step()
            if not step.skipped:
                self._engine.advance_schedule(batch)
            self._consumed += batch
            self._steps.append(_values(step, rate))
            self._save(number)
        dist.barrier()
        self._sink.finish(
            {
                "steps": self._steps,
                "checks": self._taps.checks,
                "samples": samples.digests if samples is not None else {},
            }
        )

    def _save(self, step: int) -> None:
        """Save weights and moments in the form that no layout and no engine shows in."""
        directory = weights_folder(self._folder, step)
        if self.place.rank == 0:
            directory.mkdir(parents=True)
        dist.barrier()
        progress = Progress(iteration=step, consumed_samples=self._consumed)
        storage.save(self._engine, directory, progress.to_mapping())


def _values(step: Step, learning_rate: float) -> dict[str, Any]:
    return {
        "loss": None if step.loss is None else _number(step.loss),
        "grad_norm": None if step.grad_norm is None else _number(step.grad_norm),
        "skipped": step.skipped,
        "learning_rate": learning_rate,
    }


def _number(scalar: Tensor) -> float:
    return float(scalar.item())


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingRun:
    """A recording that can begin.

    Attributes:
        recipe: what is trained.
        layout: sizes of the parallel groups.
        recorder: of this rank.
        batches: its micro-batches; None where its stages read none.
    """

    recipe: Recipe
    layout: Layout
    recorder: StepRecorder
    batches: Iterator[Batch] | None

    def run(self, steps: int) -> None:
        """Take and record the steps."""
        batch = BatchSizes.of(self.recipe).at(0)
        self.recorder.record(self.batches, steps, batch, self.layout.num_microbatches(batch))


@contextmanager
def assembled(
    recipe: Recipe, plugins: Plugins, world: World, folder: Path, *, positions: int, checkpoint: str | None
) -> Iterator[RecordingRun]:
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
            yield RecordingRun(
                recipe=recipe,
                layout=setup.layout,
                recorder=StepRecorder(engine, taps, folder, positions=positions),
                batches=data.training(0, PhaseTimers()),
            )
        engine.close()


def _ignore(_text: str) -> None:
    """Show nothing: rank 0 does."""
