"""Hugging Face GPT2LMHeadModel, SDPA, torch's fused AdamW."""

from __future__ import annotations

import contextlib
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.train_step import SHAPE, serve

dtype, threads = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(1)
config = GPT2Config(
    n_layer=SHAPE["layers"],
    n_embd=SHAPE["hidden"],
    n_head=SHAPE["heads"],
    n_positions=SHAPE["seq"],
    vocab_size=SHAPE["vocab"],
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    use_cache=False,
)
config._attn_implementation = "sdpa"
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
tokens = torch.randint(0, SHAPE["vocab"], (1, SHAPE["seq"]), generator=torch.Generator().manual_seed(0))


def step() -> float:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext():
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


serve(step)
