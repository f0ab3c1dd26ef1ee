"""Keys that a query sees on average, by which the work of attention's stand-ins is counted."""

from __future__ import annotations

import pytest

from engine import tiny
from pretrain.tools.plan.trace.rank_trace import _keys_of_a_query


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        ((), 16),
        (("data.reset_attention_mask=true",), 16),
        (("model.window_size=32",), 16),
        (("model.window_size=99",), 16),
        (("model.window_size=8",), 8 - 8 * 8 / 64),  # the first seven see fewer
    ],
)
def test_keys_of_a_query(overrides, keys):
    assert _keys_of_a_query(tiny.tiny(*overrides)) == keys
