"""Rounding errors of correct trainings, against one in float64: what docs/align.md's bound is calibrated with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.layouts import BF16, GPT2, NEOX, QWEN
from engine.tiny import VOCAB_SIZE, engine_world, micro_batches, num_microbatches, tiny
from pretrain.conformance.compared_part import evenly
from pretrain.data.samples.sequence_pieces import ALONE
from pretrain.engine.build import engine_parts
from pretrain.engine.forward import forward_loss
from pretrain.engine.megatron.forward_pass import ForwardOnlyEngine
from pretrain.plugins.host.manager import load
from pretrain.recipe import lay_out
from pretrain.tools.align.comparing.distance import UNIT, Distance, Explained
from pretrain.tools.align.comparing.recording import Points, Recording
from pretrain.tools.align.recording.folder import RankPlace, Sink, write_manifest
from pretrain.tools.align.recording.taps import Taps, Visits
from tools.align.recorded import PLAIN

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

MODELS = {"GPT-2": GPT2, "NeoX": NEOX, "Qwen": QWEN}
DTYPES = {"fp32": (), "fp16": ("precision.dtype=fp16", "precision.loss_scale=4096"), "bf16": BF16}
REFERENCE = tuple(
    f"kernels.{operation}=reference" for operation in ("attention", "norm", "linear", "cross_entropy", "activation")
)


@dataclass(frozen=True)
class Rounding:
    """Errors of one training in units of its dtype's roundoff.

    Attributes:
        errors: largest error of a tensor, by pass and position: (is_backward, position) -> units.
        row: largest error of a row.
        share: largest part of what `Explained` allows.
    """

    errors: Mapping[tuple[bool, int], float]
    row: float
    share: float


def record_in_float64(folder: Path, *overrides: str) -> Path:
    """Record forward and backward pass of the first step in float64, with the reference kernels."""
    recipe = tiny(*PLAIN, *overrides, *REFERENCE)
    plugins, taps = load("cpu"), Taps(checking=False)
    taps.step = 1
    with engine_world(plugins.backend):
        parts = engine_parts(recipe, plugins, VOCAB_SIZE, torch.device("cpu"), print, wrap_kernel=taps.around)
        engine = ForwardOnlyEngine(parts)
        for model in engine.models:
            model.double()
        folder.mkdir(parents=True)
        write_manifest(folder, recipe, parts.kernels.table, lay_out(recipe, 1), VOCAB_SIZE, positions=64)
        place = RankPlace(
            rank=0,
            tensor_rank=0,
            tensor_size=1,
            data_rank=0,
            data_size=1,
            context=ALONE,
            seq_length=recipe.model.seq_length,
            is_gated=recipe.model.activation == "swiglu",
        )
        taps.sink = sink = Sink(folder, place, evenly(recipe.model.seq_length, 64))
        taps.visits = Visits(engine.models, recipe.model.num_layers, sink)
        sink.step = 1
        engine._run(forward_loss, micro_batches(recipe, 0), num_microbatches(recipe), forward_only=False)
        sink.finish({"steps": [{}], "checks": [], "samples": {}})
    return folder


def rounding_of(exact: Path, rounded: Path) -> Rounding:
    """Measure a recording against the one in float64."""
    truth, other = (Recording.open(folder) for folder in (exact, rounded))
    points = Points(truth), Points(other)
    unit, explained = UNIT[other.dtype], Explained(dtype=other.dtype, layers=other.layers)
    errors: dict[tuple[bool, int], float] = {}
    row = share = 0.0
    for name in points[1].order():
        distance = Distance.between_parts(*(side.parts(name) for side in points))
        position = name.place.position
        where = name.is_backward, position
        errors[where] = max(errors.get(where, 0.0), distance.whole / unit)
        row = max(row, distance.row / unit)
        share = max(
            share,
            distance.whole / explained.at(position, is_backward=name.is_backward),
            distance.row / explained.of_row(position, is_backward=name.is_backward),
        )
    return Rounding(errors, row, share)
