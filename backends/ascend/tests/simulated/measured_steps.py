"""Two steps on an NPU: `python measured_steps.py RECIPE`; prints the most bytes that were allocated in the second."""

from __future__ import annotations

import os
import sys
import time
from itertools import repeat

import torch


def main() -> None:
    """Train without a launcher, data or a loop."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load
    from pretrain.plugins.host.members import environment, require_device
    from pretrain.recipe import load_recipe

    recipe, plugins = load_recipe(sys.argv[1]), load("ascend")
    for name, value in environment(plugins, recipe).items():
        os.environ.setdefault(name, value)
    require_device(plugins)
    megatron.install(plugins.backend)
    from pretrain.data.samples.sequence_pieces import ContextRank
    from pretrain.engine import groups
    from pretrain.engine.build import build_engine
    from pretrain.tools.plan.trace.rank_trace import batch_of
    from pretrain.training.rank_setup import rank_device

    device = rank_device(recipe, plugins, 0)
    groups.join_world(plugins.backend, 0, 1, timeout_minutes=10)
    engine, _ = build_engine(recipe, plugins, 257, device, lambda _line: None)
    for micro_batches in (1, 2):
        torch.npu.synchronize()
        time.sleep(0.1)  # autograd's thread of the device frees its last tensors after `backward` has returned
        torch.npu.reset_peak_memory_stats()
        engine.train_step(repeat(batch_of(recipe, ContextRank())), micro_batches)
    torch.npu.synchronize()
    print(torch.npu.max_memory_allocated())


if __name__ == "__main__":
    main()
