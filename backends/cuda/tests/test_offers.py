"""Offers of the cuda backend's kernels on named GPUs, as test_offers.yml has them, with every library installed."""

import pytest

from pretrain.conformance.offers import TestOffers

__all__ = ["TestOffers"]

BACKEND = "cuda"
DEVICES = ("Tesla V100-SXM2-32GB", "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200")


@pytest.fixture(autouse=True)
def everything_installed(monkeypatch):
    """Each library, so that the limits of its kernels are asked."""
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda _: True)
    monkeypatch.setattr("pretrain.plugins.installed.provider", lambda distribution: f"{distribution} 9")
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: None)
