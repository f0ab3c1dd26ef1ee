"""The benchmark of the softmax kernels: on a CPU it runs with tiny sizes."""

from __future__ import annotations

import json

import pytest
import torch

from pretrain.conformance import examples
from pretrain.plugins.requests import Mask
from structure.sources import ROOT


@pytest.mark.full
def test_it_measures_every_kernel_both_ways(run):
    done = run("gpu.gpu_softmax", "--tiny", "--rounds", "2")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout[done.stdout.index("{\n") :])["softmax"]
    assert len(measured) == 2 * 3
    for row, found in measured.items():
        rival = {"torch.softmax"} if row.endswith("none") else set()
        assert set(found["kernels"]) == {"in_place", "reference"} | rival
        for kernel in found["kernels"].values():
            assert all(len(kernel[way]["of_the_copy"]["all"]) == 2 for way in ("forward", "backward"))


@pytest.mark.parametrize(
    ("mask", "read", "moved"),
    [
        (Mask.NONE, 1, 2 * 16),
        (Mask.NONE, 2, 3 * 16),
        (Mask.KEY_PADDING, 1, 2 * 16),
        (Mask.CAUSAL, 1, 16 + 10),
        (Mask.CAUSAL, 2, 16 + 2 * 10),
    ],
)
def test_the_bytes_counted_are_those_that_must_be_moved(monkeypatch, mask, read, moved):
    """4 queries of 4 keys, 2 bytes each; causal ones see 10 of 16."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.gpu.gpu_softmax import rates

    scores = torch.zeros(1, 1, 4, 4, dtype=torch.bfloat16)
    found = rates(examples.softmax(mask=mask, queries=4, keys=4), scores, read, [(0.5, 2.0), (0.5, 2.0)])
    assert found["bytes_per_second"] == moved * 2 / 2
    assert found["of_the_copy"]["median"] == pytest.approx(moved * 2 / 2 / (2 * 16 * 2 / 0.5), abs=1e-4)
