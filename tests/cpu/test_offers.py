"""Offers of the cpu backend's kernels, as test_offers.yml has them."""

import pytest

from pretrain.conformance.offers import TestOffers

__all__ = ["TestOffers"]

BACKEND = "cpu"


@pytest.fixture(autouse=True)
def no_fp16_matmuls(monkeypatch):
    """A CPU without matmuls in fp16; the kernel `fp32_matmul` is there on such a one alone."""
    monkeypatch.setattr("pretrain.cpu.tiled._multiplies_fp16", lambda: False)
