"""Tiers of the kit, the cheapest first. No pytest here: `pretrain conformance --help` reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIERS: Mapping[str, Sequence[str]] = {
    "device": ("TestDeviceModule", "TestMemory", "TestCollectives"),
    "kernels": (
        "TestActivation",
        "TestAttention",
        "TestBiasDropoutAdd",
        "TestCallOrder",
        "TestCoverage",
        "TestCrossEntropy",
        "TestFake",
        "TestLinear",
        "TestNorm",
        "TestOptimizer",
        "TestRandom",
        "TestRotary",
        "TestSoftmax",
    ),
    "training": ("TestTraining",),
}
"""Tier -> its test classes."""

TIER_OF: Mapping[str, str] = {name: tier for tier, names in TIERS.items() for name in names}
