"""Offers of the ascend backend's kernels on named chips, as test_offers.yml has them. No torch_npu is needed."""

import pytest

from pretrain.conformance.offers import TestOffers

__all__ = ["TestOffers"]

BACKEND = "ascend"
DEVICES = ("Ascend910A", "Ascend910B3", "Ascend910_9391", "Ascend950PR")


@pytest.fixture(autouse=True)
def one_release(monkeypatch):
    """A release of torch_npu, so that it is not looked for at every request."""
    monkeypatch.setattr("pretrain.plugins.installed.version", lambda _: "2.13.0")
