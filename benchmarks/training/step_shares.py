"""Where a training step of GPT-2 124M goes on the CPU, and how far it is from the speed of its matmuls.

    python -m benchmarks.training.step_shares [--dtype bf16] [--threads 2] [--keep]

Time as torch's profiler has it, without that of Python. "of matmul peak" is the time that the model's FLOPs would take
at the speed of the fastest of its own matmuls, in that of a step: the least of STEPS.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter

import torch
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile

from benchmarks import machine
from benchmarks.timing import timed
from benchmarks.training.setting import GPT2_124M, Setting
from benchmarks.training.systems.pretrain import training

STEPS = 5
PARTS = {  # names of autograd's functions and torch's operations, the first that a call is inside of
    "attention": ("_Tiled",),
    "cross entropy": ("_BlockedCrossEntropy",),
    "norms": ("_HalfLayerNorm", "aten::native_layer_norm"),
    "activation": ("aten::gelu",),
    "linears: matmuls": ("aten::mm", "aten::addmm"),
    "linears: gradients added to fp32": ("_LinearBackward",),
    "optimizer, gradient norm, clipping, copies of weights": (
        "aten::_foreach",
        "Optimizer",
        "aten::linalg_vector_norm",
    ),
    "gradients zeroed and checked": ("aten::zero_", "aten::fill_", "aten::sum"),
    "embeddings": ("aten::embedding",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="write results/step_shares_DTYPE.json")
    arguments = parser.parse_args()
    setting = Setting(arguments.dtype, arguments.threads)
    torch.set_num_threads(arguments.threads)
    recipe = setting.recipe()
    step = training(setting, recipe)
    from pretrain.report.flops import flops_per_sequence

    step(), step()  # warm up
    fastest = min(timed(step) for _ in range(STEPS))
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(STEPS):
            step()
    times: Counter[str] = Counter()
    for event in profiled.events():
        times[part_of(event)] += event.self_cpu_time_total
    peak = matmul_peak(setting)
    flops = setting.micro_batch_size * flops_per_sequence(recipe.model, setting.padded_vocab)
    measured = {
        **machine.describe(arguments.threads),
        "shape": GPT2_124M,
        "dtype": arguments.dtype,
        "seconds of a step": round(fastest, 3),
        "matmul peak in GFLOP/s": round(peak / 1e9),
        "of matmul peak": round(flops / peak / fastest, 3),
        "shares": {name: round(part / times.total(), 3) for name, part in times.most_common()},
    }
    print(json.dumps(measured, indent=1))
    if arguments.keep:
        machine.keep(f"step_shares_{arguments.dtype}", measured)


def part_of(event) -> str:
    """Return the part of the step that a call belongs to: by the outermost of PARTS that it is inside of."""
    found = "other operations"
    while event is not None:
        name = event.name.removeprefix("autograd::engine::evaluate_function: ")
        for part, names in PARTS.items():
            if name.startswith(names) and not (part.startswith("linears") and found == "linears: matmuls"):
                found = part
                break
        event = event.cpu_parent
    return found


def matmul_peak(setting: Setting) -> float:
    """Return the FLOP/s of the fastest matmul of a layer."""
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[setting.dtype]
    hidden, rows = setting["hidden"], setting.micro_batch_size * setting["seq"]
    peak = 0.0
    for into, out in ((hidden, 3 * hidden), (hidden, hidden), (hidden, 4 * hidden), (4 * hidden, hidden)):
        x, weight = torch.randn(rows, into, dtype=dtype), torch.randn(out, into, dtype=dtype)
        fastest = min(timed(lambda x=x, weight=weight: F.linear(x, weight)) for _ in range(30))
        peak = max(peak, 2 * rows * into * out / fastest)
    return peak


if __name__ == "__main__":
    main()
