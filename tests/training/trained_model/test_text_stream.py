"""Text that is shown while its tokens come."""

from __future__ import annotations

import pytest

from pretrain.data.tokenizers.bytes import ByteTokenizer
from pretrain.training.generation import TextStream

BYTES = ByteTokenizer().decode


def stream(prompt, tokens, decode=BYTES):
    """Return the pieces that are shown: of the prompt, after each token, and at the end."""
    shown = TextStream(decode, prompt)
    pieces = [shown.certain()]
    for token in tokens:
        shown.append(token)
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
