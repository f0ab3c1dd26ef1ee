"""This project: the engine as a recipe builds it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from benchmarks.training.setting import Setting
from benchmarks.training.train_step import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from pretrain.recipe import Recipe


def training(setting: Setting, recipe: Recipe) -> Callable[[], float]:
    """Return a function that takes a step of the recipe of a setting and returns its loss."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load

    plugins = load(setting.backend)
    megatron.install(plugins.backend)
    from pretrain.engine import groups  # after the bridge
    from pretrain.engine.build import build_engine

    device = plugins.backend.device(0)
    groups.join_world(plugins.backend, 0, 1, 10)
    engine, _ = build_engine(recipe, plugins, setting["vocab"], device, notify=print)
    batches = [
        {
            "num_tokens": torch.tensor(float(tokens[:, 1:].numel())),
            "tokens": tokens[:, :-1],
            "labels": tokens[:, 1:].contiguous(),
            "loss_mask": torch.ones(tokens[:, 1:].shape, device=device),
            "position_ids": torch.arange(setting["seq"], device=device).expand(setting.micro_batch_size, -1),
        }
        for tokens in (batch.to(device) for batch in setting.batches())
    ]

    def step() -> float:
        return engine.train_step(iter(batches), len(batches)).loss.item()

    return step


if __name__ == "__main__":
    given = Setting.given()
    serve(training(given, given.recipe(**dict(choice.split("=") for choice in sys.argv[2:]))))
