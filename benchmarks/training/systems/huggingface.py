"""Hugging Face GPT2LMHeadModel, SDPA, torch's fused AdamW."""

from __future__ import annotations

import contextlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from benchmarks.training.setting import Setting
from benchmarks.training.train_step import serve

setting = Setting.given()
torch.manual_seed(1)
config = GPT2Config(
    n_layer=setting["layers"],
    n_embd=setting["hidden"],
    n_head=setting["heads"],
    n_positions=setting["seq"],
    vocab_size=setting["vocab"],
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    use_cache=False,
)
config._attn_implementation = "sdpa"
model = GPT2LMHeadModel(config).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
tokens = setting.batches()[0][:, :-1]


def step() -> float:
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16) if setting.dtype == "bf16" else contextlib.nullcontext():
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


serve(step)
