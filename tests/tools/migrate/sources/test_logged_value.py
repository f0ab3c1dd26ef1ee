"""Values of a log: numbers, switches and lists as they are, and every text unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.tools.migrate.sources.log import value_of


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24),
        ("1e-05", 1e-05),
        ("True", True),
        ("None", None),
        ("['0.3', 'a', '0.7', 'b']", ["0.3", "a", "0.7", "b"]),
        ("{'lr': 0.1}", {"lr": 0.1}),
        ("inf", float("inf")),
        ("torch.float16", "fp16"),
        ("torch.bfloat16", "bf16"),
        ("AttnBackend.flash", "flash"),
        ("<AttnBackend.auto: 5>", "auto"),
        ("[<CudaGraphScope.attn: 2>, <CudaGraphScope.mlp: 3>]", ["attn", "mlp"]),
    ],
)
def test_value(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "949,50,1",
        "10_000",
        "1.0e-5",
        "007",
        "cosine",
        "",
        "data/x",
        "Vocab.json",
        "(1, 2)",
        "b'x'",
        "[1,2]",
        "'a'",
        "<f>",
    ],
)
def test_text_stays(text):
    assert value_of(text) == text


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(st.integers() | st.text()))
@settings(max_examples=60, deadline=None)
def test_whatever_a_program_shows_is_read_back(value):
    assert value_of(str(value)) == value


@given(st.text(max_size=12))
@settings(max_examples=60, deadline=None)
def test_no_text_is_changed_beyond_its_type(text):
    value = value_of(text)
    assert str(value) == text or text.startswith(("torch.", "<", "[<"))
