"""Continuation of a prompt by the model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from pretrain.training.trained_model.generation import next_tokens

if TYPE_CHECKING:
    from torch import Tensor

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import ForwardEngine

TEMPERATURE = 0.7
TOP_TOKENS = 40


def continue_prompt(engine: ForwardEngine, tokenizer: Tokenizer, prompt: str, num_tokens: int, seed: int) -> str:
    """Return the prompt and `num_tokens` more tokens, fewer if the document ends; all ranks call it together.

    Tokens are drawn from the 40 most probable at temperature 0.7, from a generator of its own: all ranks draw the
    same, and training's generators stay as they are.
    """
    tokens = list(tokenizer.encode(prompt))
    draw = partial(_draw, torch.Generator().manual_seed(seed))
    for _ in next_tokens(engine, tokens, draw, tokenizer.eod, num_tokens):
        pass
    return tokenizer.decode(tokens)


def _draw(generator: torch.Generator, logits: Tensor) -> int:
    values, candidates = (logits / TEMPERATURE).topk(min(TOP_TOKENS, logits.numel()))
    return int(candidates[torch.multinomial(values.softmax(-1), 1, generator=generator)])
