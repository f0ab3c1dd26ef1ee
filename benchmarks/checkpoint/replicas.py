"""Checkpoints of several ranks that hold the same part of the model: bytes of each, seconds of saving and loading.

    python -m benchmarks.checkpoint.replicas [--tensor 2] [--replicas 4] [--rounds 3] [--rate 20] [--keep NAME]

A GPT-2 with vocabulary 50257 and few layers, in fp32 with Adam's moments: the embedding is most of it. Every rank may
write and read `rate` MB/s, as a client of a parallel file system: it sleeps after what it wrote or read (a disk of this
machine alone, which all ranks share, would be as fast with one writer). A load reads everything twice, once for the
checksums. --keep NAME writes the figures under that name into results/checkpoint_replicas.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import patch

from benchmarks import machine
from benchmarks.timing import spread

LAYOUTS = {
    "megatron": {},
    "megatron, distributed optimizer": {"parallel": {"use_distributed_optimizer": True}},
    "deepspeed, ZeRO 1": {"engine": {"name": "deepspeed", "zero": {"stage": 1}}},
}
SHAPE = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "seq_length": 128}
VOCABULARY = 50257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=20.0, help="MB/s of each rank")
    parser.add_argument("--keep", help="name under which the results are kept")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        measure(arguments, Path(os.environ["REPLICAS_FOLDER"]))
        return
    with tempfile.TemporaryDirectory() as folder:
        start(arguments.tensor * arguments.replicas, Path(folder))
        found = json.loads((Path(folder) / "0.json").read_text())
    result = {**machine.describe(threads=1), "shape": SHAPE, "vocabulary": VOCABULARY, "tensor": arguments.tensor}
    result |= {"replicas": arguments.replicas, "megabytes_per_second_of_a_rank": arguments.rate, "layouts": found}
    print(json.dumps(result, indent=1))
    if arguments.keep:
        file = machine.RESULTS / "checkpoint_replicas.json"
        before = json.loads(file.read_text()) if file.exists() else {}
        machine.keep("checkpoint_replicas", before | {arguments.keep: result})


def start(ranks: int, folder: Path) -> None:
    """Run this program once a rank, until all have ended."""
    from pretrain.launch.world import free_port

    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    world |= {"REPLICAS_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.checkpoint.replicas", *sys.argv[1:]]
    processes = [subprocess.Popen(command, env={**os.environ, **world, "RANK": str(rank)}) for rank in range(ranks)]
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"the ranks ended with {codes}")


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Save and load in each layout; the first rank writes 0.json."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load

    plugins = load("cpu")
    megatron.install(plugins.backend)
    import torch
    from megatron.core import parallel_state

    from pretrain.engine import groups
    from pretrain.engine.build import build_engine

    rank = int(os.environ["RANK"])
    groups.join_world(plugins.backend, rank, int(os.environ["WORLD_SIZE"]), timeout_minutes=10)
    found = {}
    for number, (name, sections) in enumerate(LAYOUTS.items()):
        recipe = recipe_of(arguments, sections)
        engine, _ = build_engine(recipe, plugins, VOCABULARY, torch.device("cpu"), notify=lambda _line: None)
        with closing(engine):
            found[name] = rounds(engine, folder / str(number), arguments)
        parallel_state.destroy_model_parallel()
    if rank == 0:
        (folder / "0.json").write_text(json.dumps(found))
    groups.leave()


def recipe_of(arguments: argparse.Namespace, sections: dict) -> object:
    from pretrain.recipe import make_recipe

    parallel = {"tensor_model_parallel_size": arguments.tensor}
    return make_recipe(
        {
            "model": SHAPE,
            "tokenizer": {"type": "bytes"},
            "data": {"path": "unused"},
            "train": {"micro_batch_size": 1, "global_batch_size": arguments.replicas, "train_iters": 10},
            "optimizer": {"lr": 1e-4},
            "schedule": {"lr_decay_style": "constant"},
            **sections,
            "parallel": parallel | sections.get("parallel", {}),
        }
    )


def rounds(engine, folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    """Return bytes of each rank, and seconds of saving and loading until all ranks are done."""
    import torch.distributed as dist

    from pretrain.checkpoint import storage

    saves, loads, written = [], [], []
    progress = {"iteration": 1, "consumed_samples": 1, "skipped_iterations": 0}
    for number in range(arguments.rounds):
        directory = folder / str(number)
        if dist.get_rank() == 0:
            directory.mkdir(parents=True)
        dist.barrier()
        with limited(arguments.rate * 1e6):
            began = time.monotonic()
            storage.save(engine, directory, progress)
            dist.barrier()
            saves.append(time.monotonic() - began)
            began = time.monotonic()
            storage.load(engine, directory, weights_only=False)
            dist.barrier()
            loads.append(time.monotonic() - began)
        files = [directory.glob(f"__{rank}_*.distcp") for rank in range(dist.get_world_size())]
        written = [sum(file.stat().st_size for file in of_rank) for of_rank in files]
    return {
        "bytes_of_each_rank": written,
        "largest_by_mean": round(max(written) * len(written) / sum(written), 3),
        "seconds_of_saving": spread(saves),
        "seconds_of_loading": spread(loads),
    }


@contextmanager
def limited(rate: float):
    """Let this process write and read so many bytes a second of a checkpoint's large files."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    from pretrain.checkpoint import checksums

    write, slice_file, digest = checksums.DigestingFile.write, FileSystemReader._slice_file, checksums.file_digest

    def write_slowly(self, data):
        time.sleep(memoryview(data).nbytes / rate)
        return write(self, data)

    def slice_slowly(self, file, info):
        time.sleep(info.length / rate)
        return slice_file(self, file, info)

    def digest_slowly(path, *read):
        time.sleep(path.stat().st_size / rate)
        return digest(path, *read)

    with (
        patch.object(checksums.DigestingFile, "write", write_slowly),
        patch.object(FileSystemReader, "_slice_file", slice_slowly),
        patch.object(checksums, "file_digest", digest_slowly),
    ):
        yield


if __name__ == "__main__":
    main()
