"""Text after a prompt, one token at a time, each with a whole forward pass of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click
import torch

from pretrain.training.trained_model.text_stream import TextStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from pretrain.engine.protocol import ForwardEngine
    from pretrain.training.trained_model.loaded_model import TrainedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Draws a token from logits, with a generator of its own, so that all ranks draw the same.

    Attributes:
        temperature: logits are divided by it; 0 takes the most probable token, the first of equal ones.
        top_p: only the fewest tokens whose probabilities reach this sum are drawn, in (0, 1]; nucleus sampling,
            Holtzman et al. 2019, arXiv:1904.09751, section 3.1.
        seed: of the generator.
    """

    temperature: float
    top_p: float
    seed: int
    _generator: torch.Generator = field(default_factory=torch.Generator, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._generator.manual_seed(self.seed)

    def draw(self, logits: Tensor) -> int:
        """Return a token for logits [vocabulary] on the host."""
        if self.temperature == 0:
            return int(logits.argmax())
        scaled = (logits - logits.max()).double() / self.temperature  # at most 0: no temperature is too low
        probabilities, candidates = scaled.softmax(-1).sort(descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        nucleus = torch.where(before < self.top_p, probabilities, 0.0)
        nucleus[0] = probabilities[0]  # whatever rounding makes of a tiny top_p
        return int(candidates[torch.multinomial(nucleus, 1, generator=self._generator)])


def next_tokens(
    engine: ForwardEngine, tokens: list[int], draw: Callable[[Tensor], int], eod: int, limit: int
) -> Iterator[int]:
    """Yield up to `limit` tokens after `tokens`, and append them there; all ranks iterate together.

    The end of the document ends them and is not among them.
    """
    for _ in range(limit):
        token = draw(engine.next_token_logits(tokens).cpu())
        if token == eod:
            return
        tokens.append(token)
        yield token


def generate_text(model: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> None:
    """Continue a prompt; rank 0 writes prompt and text as they come. All ranks call it together."""
    tokens = model.tokenizer.encode(prompt)
    stream = TextStream(model.tokenizer.decode, tokens)
    _show(model.rank, stream.certain())
    for token in next_tokens(model.engine, tokens, sampling.draw, model.tokenizer.eod, max_new_tokens):
        stream.append(token)
        _show(model.rank, stream.certain())
    _show(model.rank, f"{stream.rest()}\n")


def _show(rank: int, text: str) -> None:
    if rank == 0:
        click.echo(text, nl=False)  # it flushes
