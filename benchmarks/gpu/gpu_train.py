"""One training step of GPT-2 345M on one GPU: pretrain, compiled plain torch, and plain megatron-core.

    python -m benchmarks.gpu.gpu_train [--rounds 10] [--micro-batch-size 16] [--micro-batches 4] [--keep]

Sequence 1024, bf16, no dropout, gradients clipped to 1, AdamW. The systems come one after the other, each in a process
of its own, so that each has the GPU's memory to itself; one that runs out of it is reported as such. compiled_layers:
pretrain with kernels.compile: layer. compiled: systems/compiled.py. megatron: GPTModel with Transformer Engine's spec.
Where that is not installed megatron-core has only its local spec, which stores the scores and takes torch's AdamW
parameter by parameter: it is run and named, but no ratio is made of it.

Utilisation is model FLOPs (pretrain/report/flops.py: the keys that are seen, no recompute) over the datasheet's.
The exit code is 1 if a system failed otherwise, or pretrain did.
"""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING

import torch

from benchmarks.gpu import command
from benchmarks.training import one_by_one
from benchmarks.training.setting import Setting
from pretrain.report.flops import flops_per_sequence

if TYPE_CHECKING:
    import argparse

    from pretrain.plugins.host.manager import Plugins

SYSTEMS = ("pretrain", "compiled_layers", "compiled", "megatron")
GPT2_345M = {"layers": 24, "hidden": 1024, "heads": 16, "seq": 1024, "vocab": 50257}
TINY = {"layers": 2, "hidden": 64, "heads": 4, "seq": 64, "vocab": 500}


def main() -> None:
    parser = command.parser("gpu_train", __doc__)
    add_options(parser)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    setting = setting_of(arguments, plugins)
    systems = arguments.systems.split(",")
    found = one_by_one.measure(systems, setting, arguments.rounds)
    peak = plugins.backend.peak_flops(torch.bfloat16)
    for system in found.values():
        if "seconds" in system:
            system["utilisation"] = utilisation(setting, system["seconds"], peak)
    measured = {**described(setting, plugins), "peak_flops": peak, **found, **one_by_one.ratios(found, systems[0])}
    command.report("gpu_train", arguments, plugins, measured)
    sys.exit(int("seconds" not in found[systems[0]] or any("failed" in system for system in found.values())))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the size of a step."""
    parser.add_argument("--micro-batch-size", type=int, default=16, help="sequences of a micro batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="micro batches of a step")


def setting_of(arguments: argparse.Namespace, plugins: Plugins) -> Setting:
    """Return the setting that is trained."""
    return Setting(
        dtype="bf16",
        threads=command.threads(tiny=arguments.tiny),
        backend=plugins.backend.name,
        shape=tuple((TINY if arguments.tiny else GPT2_345M).items()),
        micro_batch_size=arguments.micro_batch_size,
        micro_batches=arguments.micro_batches,
    )


def described(setting: Setting, plugins: Plugins) -> dict[str, object]:
    """Return shape and batch of the training, and our kernels."""
    return {
        "shape": dict(setting.shape),
        "micro_batch_size": setting.micro_batch_size,
        "micro_batches": setting.micro_batches,
        "kernels": command.kernels(plugins, setting.recipe(), setting["vocab"]),
    }


def utilisation(setting: Setting, seconds: list[float], peak: float | None) -> float | None:
    """Return the median step's model FLOP/s over the device's; None where its peak is not known."""
    if peak is None:
        return None
    flops = setting.tokens // setting["seq"] * flops_per_sequence(setting.recipe().model, setting.padded_vocab)
    return round(flops / statistics.median(seconds) / peak, 4)


if __name__ == "__main__":
    main()
