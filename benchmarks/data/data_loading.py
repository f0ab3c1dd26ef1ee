"""Time that a step waits for its data: the loader's share of a training, and its speed when nothing else runs.

    python -m benchmarks.data.data_loading [--tokens 500000000] [--micro-batches 400] [--keep]

`quickstart` is a training of that recipe, whose own timers say how long a step waited. `recipes` are the loaders of
recipes whose devices are not here: a micro-batch is asked for, and in place of the step, which on a device leaves this
process alone, follows a sleep of the time that a device at its peak takes (6 x parameters x tokens / peak FLOP/s; none
reaches its peak, so no step is shorter). `reading` asks for one micro-batch after the other.

Token files are made up: documents of 492 tokens in the mean (log-normal) and ids that are a sparse file, so that the
disk does not count. Sample order is native unless stated otherwise. The first micro-batches, while workers start, are
left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import machine
from benchmarks.data.data_index import make_up, recipe_for

if TYPE_CHECKING:
    from pretrain.data.samples.batches import MicroBatches

DOCUMENT_TOKENS = 492
PEAK = 989.4e12
"""FLOP/s of an NVIDIA H100 SXM in bf16, dense (datasheet)."""
RECIPES = {
    "gpt2-345m.yml": (355e6, 1, 1024),
    "gpt3.yml, one of 64 devices of a replica": (175e9 / 64, 1, 2048),
    "neox20b.yml, one of 8 devices of a replica": (20.6e9 / 8, 4, 2048),
}
"""Parameters of a device, samples of a micro-batch, tokens of a sample."""
WARM_UP = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=500_000_000, help="of the made-up file; two bytes each")
    parser.add_argument("--micro-batches", type=int, default=400)
    parser.add_argument("--without-quickstart", action="store_true", help="leave out the training")
    parser.add_argument("--keep", action="store_true", help="write results/data_loading.json")
    arguments = parser.parse_args()
    result: dict[str, object] = {**machine.describe(threads=2), "load_before": round(os.getloadavg()[0], 1)}
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "made_up"
        make_up(prefix, arguments.tokens // DOCUMENT_TOKENS)
        number = arguments.micro_batches
        result["recipes"] = {name: beside_a_device(prefix, *shape, number) for name, shape in RECIPES.items()}
        result["reading"] = {
            f"index: {index}, {workers} workers": reading(prefix, index, workers, number)
            for index in ("native", "megatron")
            for workers in (0, 2)
        }
    if not arguments.without_quickstart:
        result["quickstart"] = quickstart()
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("data_loading", result)


def beside_a_device(prefix: Path, parameters: float, samples: int, seq_length: int, number: int) -> dict[str, float]:
    """Return the mean and the longest time that a step waits for a micro-batch."""
    step = 6 * parameters * samples * seq_length / PEAK
    waits = clocked(prefix, "native", 2, samples, seq_length, number, step)
    mean = statistics.mean(waits)
    return {
        "step_ms": round(1e3 * step, 3),
        "waits_ms": round(1e3 * mean, 4),
        "most_ms": round(1e3 * max(waits), 3),
        "share_percent": round(100 * mean / (step + mean), 3),
    }


def reading(prefix: Path, index: str, workers: int, number: int) -> dict[str, float]:
    """Return the speed of a loader that is read without pauses."""
    waits = clocked(prefix, index, workers, 4, 2048, number, 0.0)
    mean = statistics.mean(waits)
    return {"ms_per_micro_batch": round(1e3 * mean, 3), "million_tokens_per_s": round(4 * 2048 / mean / 1e6, 1)}


def clocked(
    prefix: Path, index: str, workers: int, samples: int, seq_length: int, number: int, step: float
) -> list[float]:
    """Return the seconds that each micro-batch was waited for."""
    batches = loader(prefix, index, workers, samples, seq_length, number + WARM_UP)
    waits = []
    for _ in range(number + WARM_UP):
        begin = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - begin)
        time.sleep(step)
    batches.close()
    return waits[WARM_UP:]


def loader(prefix: Path, index: str, workers: int, samples: int, seq_length: int, number: int) -> MicroBatches:
    # Here, because every data worker imports this file.
    import torch

    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    from pretrain.data.needed import SampleCounts
    from pretrain.data.samples.batches import MicroBatches
    from pretrain.data.samples.datasets import build_datasets
    from pretrain.data.tokenizers import load_tokenizer
    from pretrain.recipe import make_recipe

    recipe = make_recipe(recipe_for(prefix, index, seq_length, samples, number))
    datasets = build_datasets(recipe, load_tokenizer(recipe.tokenizer), SampleCounts(train=number * samples))
    return MicroBatches(
        datasets.train,
        micro_batch_size=samples,
        data_parallel_rank=0,
        data_parallel_size=1,
        consumed_samples=0,
        num_workers=workers,
        pin_memory=torch.accelerator.is_available(),
    )


def quickstart() -> dict[str, float]:
    """Train the quickstart for 60 iterations, and read its timers' last line."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ("train.train_iters=60", "schedule.lr_warmup_iters=5", "evaluation.interval=0")
        settings += ("logging.log_timers=true", "logging.log_interval=30")
        command = [Path(sys.executable).parent / "pretrain", "--backend", "cpu", "recipes/quickstart.yml"]
        command += ["--run-dir", Path(folder) / "run", *(word for each in settings for word in ("--set", each))]
        done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr}")
    data, step = (
        [float(ms) for ms in re.findall(rf"{name}: \([\d.]+, ([\d.]+)\)", done.stdout + done.stderr)]
        for name in ("data", "interval")
    )
    return {"step_ms": step[-1], "waits_ms": data[-1], "share_percent": round(100 * data[-1] / step[-1], 3)}


if __name__ == "__main__":
    main()
