"""This project: the engine as a recipe builds it."""

from __future__ import annotations

import sys

import torch

from benchmarks.train_step import SHAPE, serve
from pretrain.bridge import megatron
from pretrain.plugins.manager import load
from pretrain.recipe import make_recipe

dtype, threads = sys.argv[1], int(sys.argv[2])
choices = dict(choice.split("=") for choice in sys.argv[3:])
torch.set_num_threads(threads)
recipe = make_recipe(
    {
        "model": {
            "num_layers": SHAPE["layers"],
            "hidden_size": SHAPE["hidden"],
            "num_attention_heads": SHAPE["heads"],
            "seq_length": SHAPE["seq"],
            "activation": "gelu_tanh",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "tokenizer": {"type": "bytes"},
        "data": {"path": "unused"},
        "train": {"micro_batch_size": 1, "global_batch_size": 1, "train_iters": 1000},
        "optimizer": {"lr": 1e-4, "weight_decay": 0.1},
        "schedule": {"lr_decay_style": "constant"},
        "precision": {"dtype": dtype},
        "kernels": choices,
    }
)
plugins = load("cpu")
megatron.install(plugins.backend)

from pretrain.engine import groups  # noqa: E402  after the bridge
from pretrain.engine.build import build_engine  # noqa: E402

device = plugins.backend.device(0)
groups.join_world(plugins.backend, 0, 1, 10)
engine, _ = build_engine(recipe, plugins, SHAPE["vocab"], device, tell=print)
tokens = torch.randint(0, SHAPE["vocab"], (1, SHAPE["seq"] + 1), generator=torch.Generator().manual_seed(0))
batch = {
    "tokens": tokens[:, :-1],
    "labels": tokens[:, 1:].contiguous(),
    "loss_mask": torch.ones(1, SHAPE["seq"]),
    "position_ids": torch.arange(SHAPE["seq"])[None],
    "attention_mask": None,
}


def step() -> float:
    return engine.train_step(iter([batch]), 1).loss.item()


serve(step)
