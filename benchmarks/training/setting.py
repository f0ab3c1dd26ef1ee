"""Model, batch and device that all systems of a comparison train."""

from __future__ import annotations

import json
import sys
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pretrain.recipe import Recipe

GPT2_124M = {"layers": 12, "hidden": 768, "heads": 12, "seq": 1024, "vocab": 50257}


@dataclass(frozen=True)
class Setting:
    """One optimizer step: `micro_batches` of `micro_batch_size` sequences on one device."""

    dtype: str
    threads: int
    backend: str = "cpu"
    shape: tuple[tuple[str, int], ...] = tuple(GPT2_124M.items())
    micro_batch_size: int = 1
    micro_batches: int = 1

    def __getitem__(self, size: str) -> int:
        """Return a size of the model."""
        return dict(self.shape)[size]

    @property
    def tokens(self) -> int:
        """Tokens of one optimizer step."""
        return self.micro_batches * self.micro_batch_size * self["seq"]

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding."""
        return -(-self["vocab"] // 128) * 128

    def batches(self) -> list[torch.Tensor]:
        """Return the tokens of every micro-batch, [micro_batch_size, seq + 1] on the CPU: the same in every step."""
        generator = torch.Generator().manual_seed(0)
        shape = (self.micro_batch_size, self["seq"] + 1)
        return [torch.randint(0, self["vocab"], shape, generator=generator) for _ in range(self.micro_batches)]

    def recipe(self, **kernels: str) -> Recipe:
        """Return it as a recipe of this project: no dropout, AdamW, a constant learning rate."""
        from pretrain.recipe import make_recipe

        return make_recipe(
            {
                "model": {
                    "num_layers": self["layers"],
                    "hidden_size": self["hidden"],
                    "num_attention_heads": self["heads"],
                    "seq_length": self["seq"],
                    "activation": "gelu_tanh",
                    "hidden_dropout": 0.0,
                    "attention_dropout": 0.0,
                },
                "tokenizer": {"type": "bytes"},
                "data": {"path": "unused"},
                "train": {
                    "micro_batch_size": self.micro_batch_size,
                    "global_batch_size": self.micro_batch_size * self.micro_batches,
                    "train_iters": 1000,
                },
                "optimizer": {"lr": 1e-4, "weight_decay": 0.1},
                "schedule": {"lr_decay_style": "constant"},
                "precision": {"dtype": self.dtype},
                "kernels": kernels,
            }
        )

    def to_json(self) -> str:
        """Return the setting as `given` reads it."""
        return json.dumps(asdict(self))

    @staticmethod
    def given() -> Setting:
        """Return the setting that this process was started with, after applying it to torch."""
        values: dict[str, Any] = json.loads(sys.argv[1])
        setting = Setting(**values | {"shape": tuple((name, size) for name, size in values["shape"])})
        torch.set_num_threads(setting.threads)
        return setting


@contextmanager
def engine_of(setting: Setting) -> Iterator[Any]:
    """Build the engine of a setting alone in this process, with moments, and take it down again."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load

    plugins = load("cpu")
    megatron.install(plugins.backend)
    from pretrain.engine import groups
    from pretrain.engine.build import build_engine

    device, vocab_size = plugins.backend.device(0), setting["vocab"]
    with groups.joined(plugins.backend, 0, 1, timeout_minutes=10):
        engine, _ = build_engine(setting.recipe(), plugins, vocab_size, device, notify=print)
        with closing(engine):
            yield engine
