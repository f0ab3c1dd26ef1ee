"""Draws of tokens: by temperature, nucleus and seed alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pretrain.data.tokenizers.tokenizer import ByteTokenizer
from pretrain.training.generation import Sampling, TextStream, continue_prompt, generate_text, next_tokens

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0])


def draws(*, temperature=1.0, top_p=1.0, seed=1, count=4000, logits=LOGITS):
    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    return [sampling.draw(logits) for _ in range(count)]


def shares(drawn):
    return [drawn.count(token) / len(drawn) for token in range(4)]


def test_temperature_0_takes_the_largest_logit_and_the_first_of_equal_ones():
    assert set(draws(temperature=0, count=3)) == {1}
    assert set(draws(temperature=0, top_p=0.1, count=3, logits=torch.tensor([1.0, 2.0, 2.0]))) == {1}


@pytest.mark.parametrize(
    "temperature", [0.5, pytest.param(1.0, marks=pytest.mark.full), pytest.param(2.0, marks=pytest.mark.full)]
)
def test_tokens_are_drawn_by_their_probability_at_the_temperature(temperature):
    expected = (LOGITS.double() / temperature).exp()
    expected /= expected.sum()
    # Within 4 standard deviations of a share of 4000 draws, at most 0.5 / sqrt(4000).
    assert shares(draws(temperature=temperature)) == pytest.approx(expected.tolist(), abs=0.032)


@pytest.mark.parametrize(
    ("top_p", "nucleus"),
    [
        pytest.param(1e-12, {1}, marks=pytest.mark.full),
        (0.5, {1}),
        (0.65, {1, 2}),
        pytest.param(0.9, {0, 1, 2}, marks=pytest.mark.full),
        pytest.param(1.0, {0, 1, 2, 3}, marks=pytest.mark.full),
    ],
)
def test_top_p_leaves_the_fewest_tokens_that_reach_it(top_p, nucleus):
    """The probabilities are 0.64, 0.24, 0.09 and 0.03 of tokens 1, 2, 0 and 3."""
    assert set(draws(top_p=top_p, count=1000)) == nucleus


@pytest.mark.full
def test_the_nucleus_keeps_its_proportions():
    assert shares(draws(top_p=0.65)) == pytest.approx([0, 0.731, 0.269, 0], abs=0.032)


def test_a_seed_gives_the_same_draws_whatever_torch_draws_elsewhere():
    first = draws(seed=5, count=50)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert draws(seed=5, count=50) == first != draws(seed=6, count=50)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_very_low_temperature_stays_finite():
    assert set(draws(temperature=5e-324, count=5, logits=100 * LOGITS)) == {1}


def test_tokens_end_with_the_document_or_the_limit():
    following = SimpleNamespace(next_token_logits=lambda tokens: torch.eye(9)[tokens[-1] + 1])
    tokens = [3]
    assert list(next_tokens(following, tokens, lambda logits: int(logits.argmax()), eod=7, limit=9)) == [4, 5, 6]
    assert tokens == [3, 4, 5, 6]
    assert list(next_tokens(following, [3], lambda logits: int(logits.argmax()), eod=7, limit=2)) == [4, 5]


@pytest.mark.parametrize(("rank", "shown"), [(0, "a\u20ac\u20ac\n"), (1, "")])
def test_the_first_rank_writes_prompt_and_text(rank, shown, capsys):
    text = [*"a\u20ac\u20ac".encode(), ByteTokenizer.eod]
    engine = SimpleNamespace(next_token_logits=lambda tokens: torch.eye(257)[text[len(tokens)]])
    setup = SimpleNamespace(tokenizer=ByteTokenizer(), world=SimpleNamespace(rank=rank))
    model = SimpleNamespace(setup=setup, engine=engine)
    generate_text(model, "a", 50, Sampling(temperature=0, top_p=1, seed=0))
    assert capsys.readouterr() == (shown, "")


BYTES = ByteTokenizer().decode


def stream(prompt, tokens, decode=BYTES):
    """Return the pieces that are shown: of the prompt, after each token, and at the end."""
    so_far = list(prompt)
    shown = TextStream(decode, so_far)
    pieces = [shown.certain()]
    for token in tokens:
        so_far.append(token)
        pieces.append(shown.certain())
    return [*pieces, shown.rest()]


def test_a_character_is_shown_with_its_last_byte():
    assert stream(b"a", "\u20acb".encode()) == ["a", "", "", "\u20ac", "b", ""]
    assert stream(b"", "\U0001f600".encode()) == ["", "", "", "", "\U0001f600", ""]


def test_a_prompt_that_ends_within_a_character_is_completed():
    euro = "\u20ac".encode()
    assert stream(b"a" + euro[:2], euro[2:]) == ["a", "\u20ac", ""]


@pytest.mark.parametrize("garbage", [b"\xff\xff\xff\xff\xff", b"\xe2\x82", b"a\xf0\x9f", b"\x80b\x80"])
def test_bytes_that_are_no_text_are_shown_as_such_at_the_latest_at_the_end(garbage):
    pieces = stream(b"ab", garbage)
    assert "".join(pieces) == (b"ab" + garbage).decode(errors="replace")


def test_a_replacement_character_of_the_text_itself_is_not_lost():
    assert "".join(stream(b"", "a\ufffdb\ufffd".encode())) == "a\ufffdb\ufffd"


def test_a_decoder_that_shows_every_incomplete_byte():
    """Byte fallback, as of sentencepiece's tokenizers, gives one replacement for each byte."""

    def decode(tokens):
        try:
            return bytes(tokens).decode()
        except UnicodeDecodeError as error:
            return bytes(tokens[: error.start]).decode() + "\ufffd" * (len(tokens) - error.start)

    assert stream(b"", "x\U0001f600y".encode(), decode) == ["", "x", "", "", "", "\U0001f600", "y", ""]


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
