"""Attention in tiles: what a mask hides has no influence."""

import pytest
import torch

from pretrain.conformance.examples import attention
from pretrain.cpu.tiled import ROWS, Tiled

LENGTH = ROWS + 40


@pytest.mark.parametrize("hidden", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stores", [True, False])
@pytest.mark.parametrize("window", [None, 30])
def test_a_key_that_is_not_finite_reaches_no_earlier_query(dtype, stores, window, hidden):
    request = attention(dtype, length=LENGTH, block=ROWS, window=window)
    shape = (LENGTH, request.micro_batch_size, request.heads, request.head_size)
    query, key, value = (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2, 3)
    )
    spoiled = key.clone()
    spoiled[-1] = hidden
    kernel = Tiled(request, stores=stores)
    assert torch.equal(kernel(query, spoiled, value)[:-1], kernel(query, key, value)[:-1])
