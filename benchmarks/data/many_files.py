"""Start of a blend of many token files: time, memory, bytes read and open files of each rank.

    python -m benchmarks.data.many_files --folder DIR [--files 1000] [--documents 1000000] [--samples 1000000]
        [--ranks 1 8] [--index native megatron] [--keep]

DIR needs 20 bytes a document (20 GB); files that are there already are used again. The indices are real, the ids are
sparse files. Ranks are processes of their own that build the datasets together and read their first sample; the clock
runs in each of them from the call to that sample, after all imports, and the slowest counts. `read MB` is what all
ranks have read by calls (rchar of /proc/self/io), `own MB` their memory that is no file, and `mapped MB` the resident
pages of files, which the system can give up, each once a node (Pss_File). Of `megatron` the first start builds
the index files, the second one finds them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks import machine
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import HEADER, MAGIC, VERSION

_UINT16 = 8
_SEQ_LENGTH = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--documents", type=int, default=1_000_000, help="of each file")
    parser.add_argument("--samples", type=int, default=1_000_000, help="that the training reads of all files")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--index", nargs="*", default=["native", "megatron"])
    parser.add_argument("--keep", action="store_true", help="write results/many_files.json")
    arguments = parser.parse_args()
    prefixes = make_up(arguments.folder, arguments.files, arguments.documents)
    result: dict[str, object] = machine.describe(threads=1) | {
        name: getattr(arguments, name) for name in ("files", "documents", "samples")
    }
    for index in arguments.index:
        for ranks in arguments.ranks:
            with TemporaryDirectory(dir=arguments.folder) as cache:
                for start in ("first", "second") if index == "megatron" else ("any",):
                    name = f"{index}, {ranks} ranks, {start} start"
                    result[name] = together(index, ranks, prefixes, arguments.samples, cache)
                    print(name, json.dumps(result[name]), flush=True)
    if arguments.keep:
        machine.keep("many_files", result)


def make_up(folder: Path, files: int, documents: int) -> list[str]:
    """Write token files that all differ, of documents of 492 tokens in the mean; return their prefixes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = np.maximum(1, np.random.default_rng(0).lognormal(5.7, 1.0, documents)).astype(np.int32)
    prefixes = [folder / f"part{number:04d}_{documents}" for number in range(files)]
    for number, prefix in enumerate(prefixes):
        if bin_path(prefix).exists():
            continue
        lengths = np.roll(drawn, 997 * number)
        ends = np.cumsum(lengths, dtype=np.int64)
        with idx_path(prefix).open("wb") as stream:
            stream.write(HEADER.pack(MAGIC, VERSION, _UINT16, documents, documents + 1))
            for column in (lengths, 2 * (ends - lengths), np.arange(documents + 1, dtype=np.int64)):
                stream.write(column.tobytes())
        with bin_path(prefix).open("wb") as stream:
            stream.write(np.array([number % 256, number // 256], np.uint16).tobytes())
            stream.truncate(2 * int(ends[-1]))
    return [str(prefix) for prefix in prefixes]


def together(index: str, ranks: int, prefixes: list[str], samples: int, cache: str) -> dict[str, float]:
    """Measure a start of so many ranks of one node."""
    given = json.dumps({"index": index, "prefixes": prefixes, "samples": samples, "cache": cache})
    command = [sys.executable, "-m", "benchmarks.data.many_files", "--rank"]
    with TemporaryDirectory() as store:
        started = [
            subprocess.Popen(
                command,
                cwd=machine.ROOT,
                env=os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "STORE": f"{store}/store"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(ranks)
        ]
        for rank in started:
            rank.stdin.write(given)
            rank.stdin.close()
        told = [rank.stdout.read() for rank in started]
    if any(rank.wait() for rank in started):
        raise SystemExit(f"{index}, {ranks} ranks: failed")
    measured = [json.loads(each.splitlines()[-1]) for each in told]
    most = ("seconds", "CPU seconds", "descriptors")
    return {key: (max if key in most else sum)(each[key] for each in measured) for key in measured[0]}


def one_rank() -> None:
    """Build the datasets as one rank, and print what that took."""
    given, rank, size = json.load(sys.stdin), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    from torch import distributed

    from pretrain.data.needed import SampleCounts
    from pretrain.data.samples.datasets import build_datasets
    from pretrain.data.tokenizers import load_tokenizer
    from pretrain.recipe import make_recipe

    blend = [{"weight": 1 + number % 7, "path": path} for number, path in enumerate(given["prefixes"])]
    cache = {"cache_path": given["cache"]} if given["index"] == "megatron" else {}
    recipe = make_recipe(_recipe({"blend": blend, "split": "1,0,0", "index": given["index"], **cache}))
    tokenizer = load_tokenizer(recipe.tokenizer)
    distributed.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=rank, world_size=size)
    distributed.barrier()
    before, begin, cpu = _sizes(), time.perf_counter(), time.process_time()
    train = build_datasets(recipe, tokenizer, SampleCounts(train=given["samples"])).train
    train[rank]
    clock = {"seconds": time.perf_counter() - begin, "CPU seconds": time.process_time() - cpu}
    distributed.barrier()  # all have their memory at once
    after = _sizes()
    distributed.barrier()
    print(json.dumps({key: round(value, 2) for key, value in {**clock, **_less(after, before)}.items()}))
    distributed.destroy_process_group()


def _recipe(data: dict[str, object]) -> dict[str, object]:
    return {
        "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "seq_length": _SEQ_LENGTH},
        "tokenizer": {"type": "bytes"},
        "data": data,
        "train": {"micro_batch_size": 1, "global_batch_size": 8, "train_iters": 1, "seed": 1},
        "optimizer": {"lr": 1e-4},
        "schedule": {"lr_decay_style": "constant"},
        "evaluation": {"interval": 0},
    }


def _sizes() -> dict[str, float]:
    memory, calls = Path("/proc/self/smaps_rollup").read_text(), Path("/proc/self/io").read_text()

    def found(name: str, text: str) -> int:
        return int(re.search(rf"^{name}: +(\d+)", text, re.MULTILINE)[1])

    return {
        "read MB": found("rchar", calls) / 1e6,
        "disk MB": found("read_bytes", calls) / 1e6,
        "own MB": found("Pss_Anon", memory) * 1024 / 1e6,
        "mapped MB": found("Pss_File", memory) * 1024 / 1e6,
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def _less(after: dict[str, float], before: dict[str, float]) -> dict[str, float]:
    return {key: after[key] - before[key] for key in after}


if __name__ == "__main__":
    if "--rank" in sys.argv:
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
        one_rank()
    else:
        main()
