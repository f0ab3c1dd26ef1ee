"""Recording of an engine's steps into a folder, on one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from megatron.core import parallel_state

from pretrain.checkpoint import storage
from pretrain.tools.align.recording.rank_place import RankPlace
from pretrain.tools.align.recording.samples import Samples
from pretrain.tools.align.recording.sink import Sink, spread
from pretrain.tools.align.recording.visits import Visits
from pretrain.tools.align.recording.weights_folder import weights_folder
from pretrain.training.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch import Tensor

    from pretrain.engine.protocol import Batch, Engine, Step
    from pretrain.tools.align.recording.taps import Taps


class Recorder:
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
        self._sink = taps.sink = Sink(folder, self.place, spread(model.seq_length, positions))
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
