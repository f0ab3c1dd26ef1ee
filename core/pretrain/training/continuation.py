"""Continuation of a prompt by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import Engine

TEMPERATURE = 0.7
TOP_TOKENS = 40


def continue_prompt(engine: Engine, tokenizer: Tokenizer, prompt: str, num_tokens: int, seed: int) -> str:
    """Return the prompt and `num_tokens` more tokens, fewer if the document ends; all ranks call it together.

    Tokens are drawn from the 40 most probable at temperature 0.7, from a generator of its own: all ranks draw the
    same, and training's generators stay as they are.
    """
    tokens = list(tokenizer.encode(prompt))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(num_tokens):
        logits = engine.next_token_logits(tokens).cpu() / TEMPERATURE
        values, candidates = logits.topk(min(TOP_TOKENS, logits.numel()))
        token = int(candidates[torch.multinomial(values.softmax(-1), 1, generator=generator)])
        if token == tokenizer.eod:
            break
        tokens.append(token)
    return tokenizer.decode(tokens)
