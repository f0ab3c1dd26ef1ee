"""Shares of the kernels in the time of a training step of GPT-2 345M: the gap between gpu_train and the datasheet.

    python -m benchmarks.gpu.gpu_shares [--micro-batch-size 16] [--micro-batches 4] [--keep]

Kernels as torch's profiler names them, with their share of the step's wall time; "none" is the time without a
kernel.
"""

from __future__ import annotations

import time

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu import command
from benchmarks.gpu.gpu_train import add_options, described, setting_of
from benchmarks.training.systems.pretrain import training

SHOWN = 25
STEPS = 3


def main() -> None:
    parser = command.parser("gpu_shares", __doc__)
    add_options(parser)
    arguments = parser.parse_args()
    plugins = command.plugins(tiny=arguments.tiny)
    setting = setting_of(arguments, plugins)
    torch.set_num_threads(setting.threads)
    step = training(setting, setting.recipe())
    step(), step()  # warm up
    where = "cpu" if arguments.tiny else "device"
    activity = ProfilerActivity.CPU if arguments.tiny else ProfilerActivity.CUDA
    with profile(activities=[activity]) as profiled:
        start = time.perf_counter()
        for _ in range(STEPS):
            step()  # ends with a copy to the host
        wall = time.perf_counter() - start
    seconds = {event.key: getattr(event, f"self_{where}_time_total") / 1e6 for event in profiled.key_averages()}
    longest = sorted(seconds, key=seconds.__getitem__, reverse=True)
    shares = {
        **{name[:120]: round(seconds[name] / wall, 4) for name in longest[:SHOWN]},
        f"{len(longest[SHOWN:])} others": round(sum(seconds[name] for name in longest[SHOWN:]) / wall, 4),
        "none": round(1 - sum(seconds.values()) / wall, 4),
    }
    measured = {
        **described(setting, plugins),
        "milliseconds of a step": round(1000 * wall / STEPS, 3),
        "shares": shares,
    }
    command.report("gpu_shares", arguments, plugins, measured)


if __name__ == "__main__":
    main()
