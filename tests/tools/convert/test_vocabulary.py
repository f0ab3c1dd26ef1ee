"""Rows of an embedding are a tokenizer's where padding explains the difference."""

from __future__ import annotations

import pytest

from pretrain.checkpoint.identity import is_padded


@pytest.mark.parametrize(
    ("tokens", "rows"),
    [
        (50257, 50257),
        (50257, 50304),  # GPT-2, to a multiple of 128
        (50257, 57344),  # on 64 ranks of tensor parallelism
        (50277, 50432),  # GPT-NeoX-20B
        (151643, 151936),  # Qwen 2
        (300, 384),
    ],
)
def test_padding_explains_it(tokens, rows):
    assert is_padded(tokens, rows)


@pytest.mark.parametrize(
    ("tokens", "rows"), [(50277, 50257), (50257, 128256), (5, 11), (300, 4000), (32000, 50304), (2, 256)]
)
def test_another_tokenizer_does_not(tokens, rows):
    assert not is_padded(tokens, rows)
