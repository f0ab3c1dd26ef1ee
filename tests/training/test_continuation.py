"""A continued prompt: the same on every rank, without an effect on the training."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from pretrain.training.generation import continue_prompt

LETTERS = "abcdefgh"
EOD = len(LETTERS)


class Tokenizer:
    eod = EOD

    def encode(self, text):
        return [LETTERS.index(letter) for letter in text]

    def decode(self, tokens):
        return "".join(LETTERS[token] for token in tokens)


def engine(logits_of):
    return SimpleNamespace(next_token_logits=lambda tokens: torch.as_tensor(logits_of(tokens), dtype=torch.float32))


def certain(token):
    """Return logits with one clear maximum."""
    return [100.0 if number == token else 0.0 for number in range(EOD + 1)]


def undecided(_tokens):
    return [*(len(LETTERS) * [0.0]), -100.0]


def test_the_model_sees_all_tokens_before():
    following = engine(lambda tokens: certain((tokens[-1] + 1) % len(LETTERS)))
    assert continue_prompt(following, Tokenizer(), "ab", 3, seed=1) == "abcde"


def test_it_ends_with_the_document():
    ending = engine(lambda tokens: certain(EOD if len(tokens) == 4 else 0))
    assert continue_prompt(ending, Tokenizer(), "b", 9, seed=1) == "baaa"


def test_tokens_are_drawn_by_the_seed_alone():
    torch.manual_seed(5)
    first = continue_prompt(engine(undecided), Tokenizer(), "a", 200, seed=1)
    torch.manual_seed(6)
    state = torch.get_rng_state()
    assert continue_prompt(engine(undecided), Tokenizer(), "a", 200, seed=1) == first
    assert torch.equal(torch.get_rng_state(), state)
    assert continue_prompt(engine(undecided), Tokenizer(), "a", 200, seed=2) != first
    assert set(first) == set(LETTERS)


def test_only_the_most_probable_tokens_are_drawn():
    drawn = []
    logits = torch.arange(100.0) / 100  # nearly alike
    tokenizer = SimpleNamespace(eod=-1, encode=lambda text: [0], decode=drawn.extend)
    continue_prompt(engine(lambda tokens: logits), tokenizer, "x", 300, seed=1)
    assert min(drawn[1:]) >= 60
