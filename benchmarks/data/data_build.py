"""Speed of building token files: `pretrain data build` against the tools of Megatron-LM and gigatoken.

    python -m benchmarks.data.data_build [--megabytes 110] [--rounds 3] [--without-pool] [--folder DIR] [--keep]

Whole processes, start-up included, one after the other, after one of each that is not counted; GPT-2 BPE, two workers,
the end of every document appended. The slow rival, a pool, runs once, in the middle, or not at all. Every output must
have the same bytes. `cpu` is the processors' time. On a machine that is busy with other work it says more than
the wall time; both and the load are kept.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import lzma
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import zstandard

from benchmarks import machine
from benchmarks.data.english import SOURCE, write_english

BIN = Path(sys.executable).parent
WORKERS = "2"
POOL = "pool of tokenizers"
SMALL = ("one line", "help")
BUSY = "the machine was busy with other work: wall times and their ratios say little, use cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=110)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--tokenizers", type=Path, default=machine.ROOT.parent / "shared" / "data", help="GPT-2's files and PEPs"
    )
    parser.add_argument("--without-pool", action="store_true", help="leave out the rival that takes minutes")
    parser.add_argument("--folder", type=Path, help="where the corpus lies, or is left for the next time")
    parser.add_argument("--keep", action="store_true", help="write results/data_build.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(arguments.folder or Path(folder), arguments)
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("data_build", result)


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, object]:
    tokenizers, rounds = arguments.tokenizers, arguments.rounds
    corpus, tokenizer = folder / "corpus.jsonl", folder / "tokenizer.json"
    if not corpus.exists():
        write_english(tokenizers / "peps.jsonl", corpus, arguments.megabytes * 10**6)
    what = {"text": SOURCE, "bytes": corpus.stat().st_size}
    write_tokenizer(tokenizers, tokenizer)
    one = folder / "one.jsonl"
    one.write_text('{"text": "one line"}\n')
    compressed = pack(corpus)
    files = ["--vocab-file", tokenizers / "gpt2-vocab.json", "--merge-file", tokenizers / "gpt2-merges.txt"]

    def ours(path: Path) -> list[object]:
        options = ["--output-prefix", folder / "ours", *files, "--append-eod", "--workers", WORKERS, "--force"]
        return [BIN / "pretrain", "data", "build", path, *options]

    def rival(name: str, *options: str) -> list[object]:
        return [sys.executable, "-m", f"benchmarks.data.{name}", corpus, tokenizer, folder / name, *options]

    def decompressing(path: Path) -> list[object]:
        program = (
            "import sys; from pathlib import Path\n"
            "from pretrain.tools.corpus.chunks import open_decompressed\n"
            "with open_decompressed(Path(sys.argv[1])) as (stream, _):\n    while stream.read(1 << 20): pass"
        )
        return [sys.executable, "-c", program, path]

    commands = {
        "pretrain data build": ours(corpus),
        "gigatoken, whole file": rival("whole_file"),
        **{f"pretrain data build, {path.suffix}": ours(path) for path in compressed},
        **{f"decompressing {path.suffix} alone": decompressing(path) for path in compressed},
        "one line": ours(one),
        "help": [BIN / "pretrain", "data", "build", "--help"],
    }
    load = os.getloadavg()[0]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for name in ("pretrain data build", "gigatoken, whole file"):
        run(commands[name])  # programs and corpus are read from the disk once, for both
    for number in range(rounds):
        for name, command in commands.items():
            runs[name].append(run(command))
        if number == rounds // 2 and not arguments.without_pool:
            runs[POOL] = [run(rival("process_pool", WORKERS))]
    run(ours(corpus))
    names = ("ours_text_document", "whole_file", *(["process_pool"] if POOL in runs else []))
    outputs = {name: digest(folder / name) for name in names}
    if len(set(outputs.values())) != 1:
        raise SystemExit(f"the outputs differ: {outputs}")
    return {
        **machine.describe(threads=int(WORKERS)),
        **described_load(load, os.getloadavg()[0]),
        "corpus": what,
        "md5_of_bin_and_idx": outputs["ours_text_document"],
        "runs": {name: summary(found, None if name in SMALL else what["bytes"]) for name, found in runs.items()},
        "ratios_of_medians": ratios(runs),
    }


def described_load(before: float, after: float) -> dict[str, object]:
    """Return the load of the machine, and a note if others used it: the benchmark itself makes two at most."""
    note = {"note": BUSY} if before > 1 or after > 2.5 else {}
    return {"load_before": round(before, 1), "load_after": round(after, 1), **note}


def write_tokenizer(folder: Path, output: Path) -> None:
    """Write GPT-2's tokenizer as one file, for the rivals."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    files = (str(folder / "gpt2-vocab.json"), str(folder / "gpt2-merges.txt"))
    codec = Tokenizer(models.BPE.from_file(*files))
    codec.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    codec.decoder = decoders.ByteLevel()
    codec.add_special_tokens(["<|endoftext|>"])
    codec.save(str(output))


def pack(corpus: Path) -> list[Path]:
    content = corpus.read_bytes()
    compressed = {
        ".gz": lambda: gzip.compress(content, 6),
        ".xz": lambda: lzma.compress(content, preset=1),
        ".zst": lambda: zstandard.compress(content),
    }
    for suffix, compress in compressed.items():
        if not Path(f"{corpus}{suffix}").exists():
            Path(f"{corpus}{suffix}").write_bytes(compress())
    return [Path(f"{corpus}{suffix}") for suffix in compressed]


def run(command: list[object]) -> dict[str, float]:
    """Return seconds on the clock and of the processors, those of child processes included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, cwd=machine.ROOT, capture_output=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stderr.decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall": round(wall, 3), "cpu": round(cpu, 3)}


def summary(runs: list[dict[str, float]], size: int | None) -> dict[str, object]:
    """Return medians, and the speed where `size` bytes were read."""
    wall, cpu = (statistics.median(run[key] for run in runs) for key in ("wall", "cpu"))
    found = {"wall": round(wall, 3), "cpu": round(cpu, 3), "best_wall": min(run["wall"] for run in runs)}
    if size:
        found |= {"mb_per_s": round(size / 1e6 / wall, 1), "mb_per_cpu_s": round(size / 1e6 / cpu, 1)}
    return {**found, "all": runs}


def ratios(runs: dict[str, list[dict[str, float]]]) -> dict[str, float]:
    """Return how many times as long the rivals take, by clock and by processor."""
    median = {
        key: {name: statistics.median(r[key] for r in found) for name, found in runs.items()} for key in ("wall", "cpu")
    }
    rivals = [name for name in ("gigatoken, whole file", POOL) if name in runs]
    return {
        f"{name}, {key}": round(values[name] / values["pretrain data build"], 1)
        for key, values in median.items()
        for name in rivals
    }


def digest(prefix: Path) -> str:
    files = (Path(f"{prefix}{suffix}") for suffix in (".bin", ".idx"))
    return " ".join(hashlib.md5(path.read_bytes()).hexdigest() for path in files)


if __name__ == "__main__":
    main()
