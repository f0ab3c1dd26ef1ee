"""Conversion of a GPT-NeoX checkpoint for Hugging Face: `pretrain checkpoint convert`, the rival, and a copy.

    python -m benchmarks.checkpoint.convert [--rounds 5] [--hidden 1536] [--layers 22] [--folder PATH] [--keep]

1.5 GB in fp16 on two tensor-parallel ranks, with random numbers. Each round runs the three, in turns, each in a process
of its own and with its target removed before; they end when the target is flushed to the disk. The source is in the
page cache for all of them. `seconds` has the whole command; "of which converting" leaves out the imports, with those
that torch's fake tensors cause. `peak_megabytes` is the process's largest resident set. The rival does what
tools/ckpts/convert_neox_to_hf.py of GPT-NeoX does: all layers of all ranks into a model of transformers, then
save_pretrained. `share_of_copying` is the time of a copy by that of converting; by that of the whole command it is
`share_of_copying_with_start_up`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks import machine
from benchmarks.timing import spread

RANKS, VOCABULARY = 2, 50432
HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--keep", action="store_true", help="write results/convert.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        source = Path(folder) / "source"
        write_source(source / "global_step1", arguments.hidden, arguments.layers)
        (source / "latest").write_text("global_step1")
        result = {
            **machine.describe(threads=os.cpu_count() or 1),
            "shape": {"hidden": arguments.hidden, "layers": arguments.layers, "tensor": RANKS},
            "bytes": sum(file.stat().st_size for file in source.rglob("*") if file.is_file()),
            "bytes_of_a_layer": 24 * arguments.hidden**2,
        }
        result |= measure(source, Path(folder), arguments.rounds)
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("convert", result)


def write_source(folder: Path, hidden: int, layers: int) -> None:
    """Write layer files as GPT-NeoX does, each with its own random numbers."""
    folder.mkdir(parents=True)
    for rank in range(RANKS):
        for number, state in modules(hidden, layers):
            name = f"layer_{number:02d}-model_{rank:02d}-model_states.pt"
            torch.save({key: torch.rand(shape, dtype=torch.float16) for key, shape in state.items()}, folder / name)
        args = {
            "num_layers": layers,
            "hidden_size": hidden,
            "num_attention_heads": hidden // 64,
            "model_parallel_size": RANKS,
        }
        args |= {"max_position_embeddings": 2048, "padded_vocab_size": VOCABULARY, "gpt_j_residual": True}
        args |= {"rotary_pct": 0.25, "rotary_emb_base": 10000}
        torch.save({"args": args, "iteration": 1}, folder / f"mp_rank_{rank:02d}_model_states.pt")

    (folder / "configs").mkdir()
    config = {
        "num_layers": layers, "hidden_size": hidden, "num_attention_heads": hidden // 64, "seq_length": 2048,
        "max_position_embeddings": 2048, "norm": "layernorm", "pos_emb": "rotary", "rotary_pct": 0.25,
        "gpt_j_residual": True, "no_weight_tying": True, "bias_gelu_fusion": True, "model_parallel_size": RANKS,
    }  # fmt: skip
    (folder / "configs" / "model.yml").write_text(json.dumps(config))


def modules(hidden: int, layers: int) -> list[tuple[int, dict[str, tuple[int, ...]]]]:
    """Return the numbers of GPT-NeoX's pipeline modules with weights, and the shapes on one rank."""
    part, norm = hidden // RANKS, {"weight": (hidden,), "bias": (hidden,)}
    layer = {
        **{f"input_layernorm.{key}": shape for key, shape in norm.items()},
        **{f"post_attention_layernorm.{key}": shape for key, shape in norm.items()},
        "attention.query_key_value.weight": (3 * part, hidden),
        "attention.query_key_value.bias": (3 * part,),
        "attention.dense.weight": (hidden, part),
        "attention.dense.bias": (hidden,),
        "mlp.dense_h_to_4h.weight": (4 * part, hidden),
        "mlp.dense_h_to_4h.bias": (4 * part,),
        "mlp.dense_4h_to_h.weight": (hidden, 4 * part),
        "mlp.dense_4h_to_h.bias": (hidden,),
    }
    vocabulary = (VOCABULARY // RANKS, hidden)
    return [
        (0, {"word_embeddings.weight": vocabulary}),
        *((2 + number, layer) for number in range(layers)),
        (layers + 3, {f"norm.{key}": shape for key, shape in norm.items()}),
        (layers + 4, {"final_linear.weight": vocabulary}),
    ]


def measure(source: Path, folder: Path, rounds: int) -> dict[str, object]:
    target = folder / "target"
    commands = {
        "copy": [sys.executable, "-c", f"import shutil, os; shutil.copytree({str(source)!r}, {str(target)!r})"],
        "pretrain": [sys.executable, str(HERE / "convert_timed.py"), str(source), str(target), str(folder / "seconds")],
        "GPT-NeoX's logic": [
            sys.executable,
            str(HERE / "convert_all_at_once.py"),
            str(source / "global_step1"),
            str(target),
        ],
    }
    seconds: dict[str, list[float]] = {name: [] for name in (*commands, "of which converting")}
    peaks: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):  # the first warms up
        for name in sorted(commands, reverse=bool(number % 2)):
            shutil.rmtree(target, ignore_errors=True)
            os.sync()
            took, peak = run(commands[name], target)
            if number:
                seconds[name].append(took)
                peaks[name].append(peak)
                if name == "pretrain":
                    seconds["of which converting"].append(float((folder / "seconds").read_text()))
    ours = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "seconds": {name: spread(values, 3) for name, values in seconds.items()},
        "peak_megabytes": {name: round(max(values)) for name, values in peaks.items()},
        "share_of_copying": round(ours["copy"] / ours["of which converting"], 3),
        "share_of_copying_with_start_up": round(ours["copy"] / ours["pretrain"], 3),
        "times_as_fast_as_the_rival": round(ours["GPT-NeoX's logic"] / ours["pretrain"], 2),
    }


def run(command: list[str], target: Path) -> tuple[float, float]:
    """Return the seconds of a command until its target is on the disk, and its peak of memory in 10^6 bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} ended with {process.returncode}")
    for file in target.rglob("*"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
