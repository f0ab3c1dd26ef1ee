"""Cost of checksums: a checkpoint of GPT-2 124M with Adam's moments, fp32, saved with and without them, and loaded.

    python -m benchmarks.training.checkpoint_checksums [--rounds 10] [--keep]

One process, one thread; rounds with and without take turns. `seconds_of_checksums` is the time of digesting while the
files are written, of reading the small files again and of writing checksums.txt; `share_of_saving` is that of a save
without it. The page cache lets whole saves vary by more than that. Other digests are timed over bytes in memory.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
import xxhash

from benchmarks import machine
from benchmarks.timing import spread, timed
from benchmarks.training.setting import GPT2_124M, Setting, engine_of

PROGRESS = {"iteration": 1, "consumed_samples": 1, "skipped_iterations": 0}
BLOCK = bytes(1 << 26)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--layers", type=int, default=GPT2_124M["layers"])
    parser.add_argument("--folder", type=Path, help="where to save; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="write results/checkpoint_checksums.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setting = Setting("fp32", threads=1, shape=tuple({**GPT2_124M, "layers": arguments.layers}.items()))
    with engine_of(setting) as engine, tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = {**machine.describe(threads=1), "shape": {**GPT2_124M, "layers": arguments.layers}}
        result |= measure(engine, Path(folder), arguments.rounds)
    result["gigabytes_per_second"] = {name: round(speed(digest), 2) for name, digest in DIGESTS.items()}
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("checkpoint_checksums", result)


DIGESTS = {
    "xxh3_128": xxhash.xxh3_128_digest,
    "crc32": zlib.crc32,
    "sha256": lambda data: hashlib.sha256(data).digest(),
    "blake2b": lambda data: hashlib.blake2b(data).digest(),
}


def speed(digest) -> float:
    """Return the best of five, in 10^9 bytes per second."""
    return len(BLOCK) / min(timed(lambda: digest(BLOCK)) for _ in range(5)) / 1e9


def measure(engine, folder: Path, rounds: int) -> dict[str, object]:
    """Return seconds of saving and loading, and the share of the checksums in a save."""
    saved: dict[str, list[float]] = {"with": [], "without": []}
    from pretrain.checkpoint import storage

    spent, loads, checks = [], [], []
    for number in range(rounds + 1):  # the first warms up
        kinds = [("without", without_checksums), ("with", watched)]
        for kind, hindrance in kinds if number % 2 else reversed(kinds):
            directory = folder / kind
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            os.sync()
            with hindrance() as clock:
                seconds = timed(lambda: storage.save(engine, directory, PROGRESS))  # noqa: B023
            if number:
                saved[kind].append(seconds)
                if kind == "with":
                    spent.append(clock.seconds)
        if number:
            checks.append(timed(lambda: check(folder / "with")))
            loads.append(timed(lambda: storage.load(engine, folder / "with", weights_only=False)))
    return {
        "bytes": sum(entry.stat().st_size for entry in (folder / "with").iterdir()),
        "seconds_of_saving": {kind: spread(values) for kind, values in saved.items()},
        "seconds_of_checksums": spread(spent),
        "share_of_saving": spread([each / (all_ - each) for each, all_ in zip(spent, saved["with"], strict=True)]),
        "seconds_of_loading": spread(loads),
        "of_which_checking": spread(checks),
    }


def check(directory: Path) -> None:
    from pretrain.checkpoint.checksums import damage_in_share

    if problem := damage_in_share(directory):
        raise SystemExit(problem)


@contextmanager
def watched():
    """Measure the time of the checksums."""
    from pretrain.checkpoint import checksums

    clock = SimpleNamespace(seconds=0.0)
    write, write_checksums = checksums.DigestingFile.write, checksums.write

    def update(state, data):
        start = time.perf_counter()
        state.update(data)
        clock.seconds += time.perf_counter() - start

    def write_and_watch(self, data):
        real, self._state = self._state, SimpleNamespace(update=lambda data: update(real, data))
        try:
            return write(self, data)
        finally:
            self._state = real

    def write_checksums_and_watch(*arguments):
        clock.seconds += timed(lambda: write_checksums(*arguments))

    with (
        patch.object(checksums.DigestingFile, "write", write_and_watch),
        patch.object(checksums, "write", write_checksums_and_watch),
    ):
        yield clock


@contextmanager
def without_checksums():
    """Save as megatron-core does by itself."""
    from pretrain.checkpoint import checksums, snapshot

    with (
        patch.object(snapshot, "Recorder", lambda: SimpleNamespace(open=open, files={})),
        patch.object(checksums, "write", lambda *_: None),
    ):
        yield None


if __name__ == "__main__":
    main()
