"""Recordings of the tiny GPT in this process, or as a rank of a world."""

from __future__ import annotations

from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

import orjson
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from engine.tiny import VOCAB_SIZE, engine_world, micro_batches, num_microbatches, tiny
from pretrain.engine.build import build_engine
from pretrain.plugins.host.manager import load
from pretrain.recipe import lay_out
from pretrain.tools.align.comparing.compare import compare
from pretrain.tools.align.comparing.recording import Recording
from pretrain.tools.align.recording.folder import write_manifest
from pretrain.tools.align.recording.recorder import StepRecorder
from pretrain.tools.align.recording.taps import Taps
from tools.align.wrong_kernels import with_mistake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from pretrain.tools.align.comparing.outcome import AlignResult
    from tools.align.wrong_kernels import Mistake

SMALL = (
    "model.num_layers=12",
    "model.hidden_size=32",
    "model.num_attention_heads=2",
    "model.seq_length=16",
    "model.position_embedding_type=rope",
    "kernels.attention=softmax",
    "train.global_batch_size=4",
)
"""A model that calls every operation."""

PLAIN = ("schedule.lr_decay_style=constant", "schedule.lr_warmup_iters=0")
"""As `pretrain.tools.align.run.Side.comparable` has it."""


def record(folder: Path, *overrides: str, steps: int = 1, mistake: Mistake | None = None) -> Path:
    """Record steps of the tiny GPT, in a world of one or in the one that this process has joined."""
    recipe = tiny(*PLAIN, *overrides)
    plugins, taps = load("cpu"), Taps()
    wrong = with_mistake(mistake, recipe.model.num_layers)

    def around(request, kernel):
        return taps.around(request, wrong(request, kernel))

    with engine_world(plugins.backend):
        engine, kernels = build_engine(
            recipe, plugins, VOCAB_SIZE, torch.device("cpu"), notify=print, wrap_kernel=around
        )
        with closing(engine):
            folder.mkdir(parents=True, exist_ok=True)
            if dist.get_rank() == 0:
                layout = lay_out(recipe, dist.get_world_size())
                write_manifest(folder, recipe, kernels.table, layout, VOCAB_SIZE, positions=64)
            batches = chain.from_iterable(micro_batches(recipe, step) for step in range(steps))
            recorder = StepRecorder(engine, taps, folder, positions=64)
            recorder.record(
                batches if engine.reads_data else None, steps, recipe.train.global_batch_size, num_microbatches(recipe)
            )
    return folder


def outcome_of(first: Path, second: Path) -> AlignResult:
    """Compare two recordings."""
    return compare(Recording.open(first), Recording.open(second))


def change_tensor(folder: Path, change: Callable[[Tensor], Tensor], **wanted: object) -> None:
    """Change the first tensor of a recording's rank 0 whose line has these values."""
    lines = [orjson.loads(line) for line in (folder / "rank0" / "points.jsonl").read_bytes().splitlines()]
    line = next(each for each in lines if all(each[key] == value for key, value in wanted.items()))
    file = folder / "rank0" / f"tensors{line['file']}.safetensors"
    tensors = load_file(file)
    tensors[line["key"]] = change(tensors[line["key"]])
    file.unlink()  # the other one may be read
    save_file(tensors, file)


QKV: dict[str, object] = {"position": 2, "module": "self_attention.linear_qkv", "name": "output", "backward": False}
"""The output of a linear in layer 2, for `change_tensor`."""
