"""Text after a prompt, one token at a time, each with a whole forward pass of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import click
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from pretrain.data.tokenizers.tokenizer import Tokenizer
    from pretrain.engine.protocol import ForwardEngine
    from pretrain.training.trained_model import TrainedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Draws a token from logits, with a generator of its own, so that all ranks draw the same."""

    temperature: float  # divides the logits; 0 takes the most probable token, the first of equal ones
    top_p: float  # nucleus sampling, in (0, 1]: Holtzman et al. 2019, arXiv:1904.09751, section 3.1
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
    engine: ForwardEngine, tokens: list[int], draw: Callable[[Tensor], int], eod: int | None, limit: int
) -> Iterator[int]:
    """Yield up to `limit` tokens after `tokens`, without the document's end, and append them; all ranks together."""
    for _ in range(limit):
        token = draw(engine.next_token_logits(tokens).cpu())
        if token == eod:
            return
        tokens.append(token)
        yield token


def generate_text(model: TrainedModel, prompt: str, max_new_tokens: int, sampling: Sampling) -> None:
    """Continue a prompt; rank 0 writes prompt and text as they come. All ranks call it together."""
    tokenizer, rank = model.setup.tokenizer, model.setup.world.rank
    tokens = list(tokenizer.encode(prompt))
    stream = TextStream(tokenizer.decode, tokens)
    _show(rank, stream.certain())
    for _ in next_tokens(model.engine, tokens, sampling.draw, tokenizer.eod, max_new_tokens):
        _show(rank, stream.certain())
    _show(rank, f"{stream.rest()}\n")


def _show(rank: int, text: str) -> None:
    if rank == 0:
        click.echo(text, nl=False)  # it flushes


_INCOMPLETE = "\ufffd"  # what tokenizers decode incomplete bytes of a character to, once or for each byte

_LONGEST = 3  # bytes of UTF-8 that can be there without their character's last one


class TextStream:
    """Text of a growing list of tokens; the end of it that the next token may still change is held back."""

    def __init__(self, decode: Callable[[Sequence[int]], str], tokens: list[int]) -> None:
        self._decode, self._tokens = decode, tokens
        self._shown = 0

    def certain(self) -> str:
        """Return the text that no later token will change, without what was returned before."""
        text = self._decode(self._tokens)
        end = text[-_LONGEST:]
        return self._new(text, len(text) - len(end) + len(end.rstrip(_INCOMPLETE)))

    def rest(self) -> str:
        """Return what was held back, at the end of the tokens."""
        text = self._decode(self._tokens)
        return self._new(text, len(text))

    def _new(self, text: str, end: int) -> str:
        begin, self._shown = self._shown, max(self._shown, end)
        return text[begin:end]


TEMPERATURE = 0.7
TOP_TOKENS = 40


def continue_prompt(engine: ForwardEngine, tokenizer: Tokenizer, prompt: str, num_tokens: int, seed: int) -> str:
    """Return the prompt and `num_tokens` more tokens, fewer if the document ends; all ranks call it together."""
    # Tokens come from a generator of its own: all ranks draw the same, and training's generators stay as they are.
    tokens = list(tokenizer.encode(prompt))
    draw = partial(_draw, torch.Generator().manual_seed(seed))
    for _ in next_tokens(engine, tokens, draw, tokenizer.eod, num_tokens):
        pass
    return tokenizer.decode(tokens)


def _draw(generator: torch.Generator, logits: Tensor) -> int:
    values, candidates = (logits / TEMPERATURE).topk(min(TOP_TOKENS, logits.numel()))
    return int(candidates[torch.multinomial(values.softmax(-1), 1, generator=generator)])
