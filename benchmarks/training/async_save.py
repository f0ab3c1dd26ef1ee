"""Stall of the training by a save: with `checkpoint.async_save` and without, of the same checkpoint in the same run.

    python -m benchmarks.training.async_save [--rounds 10] [--layers 2] [--folder PATH] [--keep]

GPT-2 124M with fewer layers, sequences of 256 tokens and Adam's moments, fp32, on the CPU; one process. In each round
the training saves once at once and once beside its steps, in turns. `seconds_of_stall` is the time of the call that
saves. `seconds_until_complete` is the time from that call until the step after which the training knows that the
checkpoint is the latest one. `seconds_of_a_step` has the steps beside which a checkpoint was written, and as many
others after them. The state is in host memory here: copying it is a memory copy, on a device a transfer. The page cache
lets whole saves vary.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.timing import spread, timed
from benchmarks.training.setting import GPT2_124M, Setting, engine_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to save; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="write results/async_save.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setting = Setting("fp32", threads=1, shape=tuple({**GPT2_124M, "layers": arguments.layers, "seq": 256}.items()))
    with engine_of(setting) as engine, tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = {**machine.describe(threads=1), "shape": dict(setting.shape)}
        result |= measure(engine, batches_of(setting), Path(folder), arguments.rounds)
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("async_save", result)


def measure(engine, batches, folder: Path, rounds: int) -> dict[str, object]:
    """Return seconds of both ways to save, and of the steps beside them."""
    from pretrain.checkpoint.background import BackgroundSaves
    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.training.progress import Progress
    from pretrain.training.saving import Saving

    checkpoints, told = CheckpointFolder(folder, keep=1), []
    saving = Saving(checkpoints, 0, BackgroundSaves(checkpoints, is_main=True, notify=told.append, timeout_minutes=1))
    stalls, complete, steps = {"at once": [], "async_save": []}, [], {"quiet": [], "beside a save": []}
    iteration = 0
    for number in range(rounds + 1):  # the first warms up
        stall, step = {}, {"quiet": [], "beside a save": []}
        for way in sorted(stalls, reverse=bool(number % 2)):
            iteration += 1
            os.sync()
            start = time.perf_counter()
            saving.save(engine, Progress(iteration=iteration), trains_on=way == "async_save")
            stall[way] = time.perf_counter() - start
            if way == "async_save":
                told.clear()
                while not told:
                    step["beside a save"].append(timed(lambda: engine.train_step(iter(batches), len(batches))))
                    saving.poll()
                until = time.perf_counter() - start
                step["quiet"] = [
                    timed(lambda: engine.train_step(iter(batches), len(batches))) for _ in step["beside a save"]
                ]
        if number:
            complete.append(until)
            for way, seconds in stall.items():
                stalls[way].append(seconds)
            for kind, seconds in step.items():
                steps[kind] += seconds
    return {
        "bytes": sum(entry.stat().st_size for entry in checkpoints.directory(iteration).iterdir()),
        "seconds_of_stall": {way: spread(values) for way, values in stalls.items()},
        "share_of_stall": spread([ours / all_ for all_, ours in zip(*stalls.values(), strict=True)]),
        "seconds_until_complete": spread(complete),
        "seconds_of_a_step": {kind: spread(values) for kind, values in steps.items()},
    }


def batches_of(setting: Setting) -> list[dict[str, torch.Tensor | None]]:
    return [
        {
            "num_tokens": torch.tensor(float(tokens[:, 1:].numel())),
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:].contiguous(),
            "loss_mask": torch.ones(tokens[:, 1:].shape),
            "position_ids": torch.arange(setting["seq"]).expand(setting.micro_batch_size, -1),
        }
        for tokens in setting.batches()
    ]


if __name__ == "__main__":
    main()
