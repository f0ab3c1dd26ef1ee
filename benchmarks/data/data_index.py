"""Time and memory to prepare the order of the samples: `data.index` against megatron-core itself.

    python -m benchmarks.data.data_index [--documents 100000000] [--epochs 0.98] [--rounds 2] [--folder DIR] [--keep]

Token files are made up: an index of documents of 492 tokens in the mean (log-normal), and ids that are a sparse
file. Every measurement is a process of its own, in turn with the others; its clock runs from the call that builds the
dataset to the first sample, after all imports. `MB` is the largest resident size above what it was before the call,
mapped pages of the index in the system's cache included; `own MB` is the part of it that is no file, at the end.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import machine
from benchmarks.timing import spread
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import HEADER, MAGIC, VERSION

SEQ_LENGTH = 1024
SYSTEMS = ("megatron-core", "index: megatron", "index: native")
_UINT16 = 8
_AT_ONCE = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--documents", type=int, default=100_000_000)
    parser.add_argument("--epochs", type=float, default=0.98)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", help="with room for 20 bytes a document; by default that for temporary files")
    parser.add_argument("--keep", action="store_true", help="write results/data_index.json")
    arguments = parser.parse_args()
    measured: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        prefix = Path(folder) / "made_up"
        samples = int(arguments.epochs * make_up(prefix, arguments.documents) // SEQ_LENGTH)
        start("index: native", prefix, samples)  # brings the ids into the page cache
        for _ in range(arguments.rounds):
            for system in SYSTEMS:
                measured[system].append(start(system, prefix, samples))
                print(system, measured[system][-1], flush=True)
    result = {
        **machine.describe(threads=1),
        "documents": arguments.documents,
        "samples": samples,
        **{system: {name: column(runs, name) for name in runs[0]} for system, runs in measured.items()},
    }
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("data_index", result)


def column(runs: list[dict[str, float]], name: str) -> dict[str, object]:
    return spread([run[name] for run in runs], 3)


def make_up(prefix: Path, documents: int) -> int:
    """Write an index, and a sparse file of as many ids; return their number."""
    random, tokens = np.random.default_rng(0), 0
    with idx_path(prefix).open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, VERSION, _UINT16, documents, documents + 1))
        stream.truncate(HEADER.size + 4 * documents + 8 * documents + 8 * (documents + 1))
    content = np.memmap(idx_path(prefix), np.uint8, "r+", offset=0)
    lengths = content[HEADER.size : HEADER.size + 4 * documents].view("<i4")
    offsets = content[HEADER.size + 4 * documents : HEADER.size + 12 * documents].view("<i8")
    ends = content[HEADER.size + 12 * documents :].view("<i8")
    for first in range(0, documents, _AT_ONCE):
        part = slice(first, min(first + _AT_ONCE, documents))
        lengths[part] = np.maximum(1, random.lognormal(5.7, 1.0, part.stop - first)).astype(np.int32)
        offsets[part] = 2 * (tokens + np.cumsum(lengths[part], dtype=np.int64) - lengths[part])
        tokens += int(lengths[part].sum(dtype=np.int64))
        ends[part] = np.arange(first, part.stop)
    ends[-1] = documents
    content.flush()
    with bin_path(prefix).open("wb") as stream:
        stream.truncate(2 * tokens)
    return tokens


def recipe_for(
    prefix: Path, index: str, seq_length: int, micro_batch_size: int, train_iters: int, **data: str
) -> dict[str, dict[str, object]]:
    """Return a recipe's content that reads made-up token files, one micro-batch an iteration."""
    batch = {"micro_batch_size": micro_batch_size, "global_batch_size": micro_batch_size}
    return {
        "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "seq_length": seq_length},
        "tokenizer": {"type": "bytes"},
        "data": {"path": str(prefix), "split": "1,0,0", "index": index, **data},
        "train": {**batch, "train_iters": train_iters, "seed": 1},
        "optimizer": {"lr": 1e-4},
        "schedule": {"lr_decay_style": "constant"},
        "evaluation": {"interval": 0},
    }


def start(system: str, prefix: Path, samples: int) -> dict[str, float]:
    """Measure in a new process, with a new folder for the indices."""
    with tempfile.TemporaryDirectory(dir=prefix.parent) as cache:
        command = [sys.executable, "-m", "benchmarks.data.data_index_process", system, prefix, str(samples), cache]
        done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{system}:\n{done.stderr}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def resident(name: str) -> float:
    """Return a size of this process in MB (10^6 bytes): VmRSS is resident, RssAnon its part that is no file.

    VmHWM is the largest VmRSS so far.

    Not `getrusage`: a process begins with the largest size of the one that started it (fs/exec.c of Linux).
    """
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6


def clocked(build) -> dict[str, float]:
    """Return time and memory of building a dataset and reading its first sample."""
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak of the resident size (proc(5))
    before, own = resident("VmRSS"), resident("RssAnon")
    begin = time.perf_counter()
    built = build()
    built[0]
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "MB": resident("VmHWM") - before, "own MB": resident("RssAnon") - own}


if __name__ == "__main__":
    main()
