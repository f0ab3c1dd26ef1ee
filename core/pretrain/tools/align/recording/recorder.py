"""Records an engine's steps on one rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.checkpoint import storage
from pretrain.conformance.compared_part import evenly
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.model.context import context_rank
from pretrain.plugins.negotiation.kernels import naming_kernels
from pretrain.report.timers import PhaseTimers
from pretrain.tools.align.recording.folder import RankPlace, Samples, Sink, weights_folder, write_manifest
from pretrain.tools.align.recording.taps import Taps, Visits
from pretrain.training.progress import BatchSizes, Progress
from pretrain.training.rank_setup import RankSetup
from pretrain.training.trained_model import load_weights
from pretrain.training.training_data import TrainingData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.engine.protocol import Batch, Engine
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


class StepRecorder:
    """Recorder of one rank; all ranks call its methods together."""

    def __init__(self, engine: Engine, taps: Taps, folder: Path, *, positions: int) -> None:
        self._engine, self._taps, self._folder = engine, taps, folder
        model = engine.recipe.model
        self.place = RankPlace(
            rank=dist.get_rank(),
            tensor_rank=parallel_state.get_tensor_model_parallel_rank(),
            tensor_size=parallel_state.get_tensor_model_parallel_world_size(),
            data_rank=parallel_state.get_data_parallel_rank(),
            data_size=parallel_state.get_data_parallel_world_size(),
            context=context_rank(),
            seq_length=model.seq_length,
            is_gated=model.activation == "swiglu",
        )
        self._sink = taps.sink = Sink(folder, self.place, evenly(model.seq_length, positions))
        self._visits = taps.visits = Visits(engine.models, model.num_layers, self._sink)
        self._steps: list[dict[str, Any]] = []
        self._consumed = 0

    def record(self, batches: Iterator[Batch] | None, steps: int, batch: int, num_microbatches: int) -> None:
        """Take and record steps."""
        samples = None if batches is None else Samples(batches, self.place)
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
            loss, norm = (None if each is None else float(each.item()) for each in (step.loss, step.grad_norm))
            self._steps.append({"loss": loss, "grad_norm": norm, "skipped": step.skipped, "learning_rate": rate})
            self._save(number)
        dist.barrier()
        digests = samples.digests if samples is not None else {}
        self._sink.finish({"steps": self._steps, "checks": self._taps.checks, "samples": digests})

    def _save(self, step: int) -> None:
        # In the form that no layout and no engine shows in.
        directory = weights_folder(self._folder, step)
        if self.place.rank == 0:
            directory.mkdir(parents=True)
        dist.barrier()
        progress = Progress(iteration=step, consumed_samples=self._consumed)
        storage.save(self._engine, directory, progress.to_mapping())


def record_steps(
    recipe: Recipe, plugins: Plugins, world: World, folder: Path, *, steps: int, positions: int, checkpoint: str | None
) -> None:
    """Build engine, data and recorder on this rank, record the steps, and take everything down; see `record`."""
    setup = RankSetup.of(recipe, plugins, world)
    taps, layout, vocab_size = Taps(), setup.layout, setup.tokenizer.vocab_size
    notify = click.echo if world.rank == 0 else (lambda _: None)
    with groups.joined(plugins.backend, world.rank, world.world_size, recipe.parallel.distributed_timeout_minutes):
        engine, kernels = build_engine(recipe, plugins, vocab_size, setup.device, notify, wrap_kernel=taps.around)
        with naming_kernels(kernels):
            if checkpoint is not None:
                load_weights(engine, setup.tokenizer.fingerprint, Path(checkpoint))
            progress = Progress()
            data, _ = TrainingData.of(setup, engine, progress).resume(progress)
            if world.rank == 0:
                write_manifest(folder, recipe, kernels.table, layout, vocab_size, positions=positions)
            recorder = StepRecorder(engine, taps, folder, positions=positions)
            batch = BatchSizes.of(recipe).at(0)
            recorder.record(data.training(0, PhaseTimers()), steps, batch, layout.num_microbatches(batch))
        engine.close()
