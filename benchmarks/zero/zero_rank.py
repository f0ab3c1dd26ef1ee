"""One rank of a data-parallel GPT on either engine, measured by zero_step and zero_memory.

    python -m benchmarks.zero.zero_rank SYSTEM DTYPE SHAPE

It is one rank of WORLD_SIZE and takes a step for every line on its standard input.
No dropout, one micro-batch of one sequence, gradients clipped to 1, AdamW. The weights do not depend on the engine, so
all systems must have the same losses.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time

import torch

from pretrain.bridge import megatron
from pretrain.plugins.host.manager import load
from pretrain.recipe import make_recipe

PLUGINS = load("cpu")
megatron.install(PLUGINS.backend)

from pretrain.engine import groups  # noqa: E402  after the bridge
from pretrain.engine.build import build_engine  # noqa: E402

DEEPSPEED = "engine.name=deepspeed"
STAGE = "engine.zero.stage={}".format
OFFLOAD = "engine.zero.offload_optimizer={{device: cpu, cpu_adam: {}}}".format
SYSTEMS = {
    "megatron": (),
    "megatron ZeRO-1": ("parallel.use_distributed_optimizer=true",),
    "ZeRO-0": (DEEPSPEED,),
    "ZeRO-1": (DEEPSPEED, STAGE(1)),
    "ZeRO-2": (DEEPSPEED, STAGE(2)),
    "ZeRO-3": (DEEPSPEED, STAGE(3)),
    "ZeRO-3, offload, torch Adam": (DEEPSPEED, STAGE(3), OFFLOAD("torch")),
    "ZeRO-3, offload, deepspeed Adam": (DEEPSPEED, STAGE(3), OFFLOAD("deepspeed")),
}


def recipe(system: str, dtype: str, shape: dict, ranks: int, options: tuple[str, ...] = ()):
    """Return the recipe of a system; `options` are more overrides."""
    # At stage 0 DeepSpeed sums gradients in the dtype of the weights.
    in_fp32 = ("precision.grad_reduce_in_fp32=false",) if system == "ZeRO-0" and dtype != "fp32" else ()
    values = {
        "model": {
            "num_layers": shape["layers"],
            "hidden_size": shape["hidden"],
            "num_attention_heads": shape["heads"],
            "seq_length": shape["seq"],
            "activation": "gelu_tanh",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "tokenizer": {"type": "bytes"},
        "data": {"path": "unused"},
        "train": {"micro_batch_size": 1, "global_batch_size": ranks, "train_iters": 1000},
        "optimizer": {"lr": 1e-4, "weight_decay": 0.1},
        "schedule": {"lr_decay_style": "constant"},
        "precision": {"dtype": dtype},
    }
    return make_recipe(values, (*SYSTEMS[system], *in_fp32, *options))


def build(system: str, dtype: str, shape: dict, options: tuple[str, ...] = ()):
    """Join the world of the environment; return this rank's engine and the micro-batch that it always trains on."""
    torch.set_num_threads(1)
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = PLUGINS.backend.device(0)
    groups.join_world(PLUGINS.backend, rank, ranks, timeout_minutes=10)
    with contextlib.redirect_stdout(None):  # DeepSpeed's bf16 optimizer prints what memory it needs
        engine, _ = build_engine(
            recipe(system, dtype, shape, ranks, options),
            PLUGINS,
            shape["vocab"],
            device,
            notify=lambda line: print(line, file=sys.stderr),
        )
    tokens = torch.randint(0, shape["vocab"], (1, shape["seq"] + 1), generator=torch.Generator().manual_seed(rank))
    batch = {
        "num_tokens": torch.tensor(float(shape["seq"])),
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:].contiguous(),
        "loss_mask": torch.ones(1, shape["seq"]),
        "position_ids": torch.arange(shape["seq"])[None],
    }
    return engine, batch


if __name__ == "__main__":
    engine, batch = build(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    for _ in sys.stdin:
        start, start_of_work = time.perf_counter(), time.process_time()
        loss = engine.train_step(iter([batch]), 1).loss.item()
        seconds, work = time.perf_counter() - start, time.process_time() - start_of_work
        print(json.dumps({"seconds": seconds, "cpu_seconds": work, "loss": loss}), flush=True)
