"""A compact GPT-2 in plain torch, trained as nanoGPT does: torch.compile, SDPA, bf16 by autocast, fused AdamW."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from benchmarks.training.setting import Setting
from benchmarks.training.train_step import serve

if TYPE_CHECKING:
    from collections.abc import Callable


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])
        self.query_key_value, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.query_key_value(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(context.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class Model(nn.Module):
    """The loss of GPT-2, with tied embeddings."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        hidden = setting["hidden"]
        self.words = nn.Embedding(setting.padded_vocab, hidden)
        self.positions = nn.Embedding(setting["seq"], hidden)
        self.blocks = nn.Sequential(*(Block(hidden, setting["heads"]) for _ in range(setting["layers"])))
        self.norm = nn.LayerNorm(hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens[:, :-1]) + self.positions.weight
        logits = F.linear(self.norm(self.blocks(x)), self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def training(setting: Setting, *, is_compiled: bool) -> Callable[[], float]:
    """Return a function that takes a step and returns its loss; AdamW is fused where the model is compiled."""
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")  # what nanoGPT allows: TF32 for what autocast leaves in fp32
    with torch.device(setting.backend):
        model = Model(setting)
    loss_of = torch.compile(model) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=is_compiled)
    batches = [tokens.to(setting.backend) for tokens in setting.batches()]
    is_half = setting.dtype == "bf16"

    def step() -> float:
        total = torch.zeros((), device=setting.backend)
        for tokens in batches:
            with torch.autocast(setting.backend, torch.bfloat16) if is_half else contextlib.nullcontext():
                loss = loss_of(tokens) / len(batches)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total.item()

    return step


if __name__ == "__main__":
    serve(training(Setting.given(), is_compiled=True))
