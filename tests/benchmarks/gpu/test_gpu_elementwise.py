"""The benchmark of the small kernels: on a CPU it runs with a tiny model."""

from __future__ import annotations

import json

import pytest

ROWS = {
    *("norm, LayerNorm", "norm, RMSNorm", "activation, gelu", "activation, gelu_tanh", "activation, swiglu"),
    *("bias_dropout_add, dropout 0.0", "bias_dropout_add, dropout 0.1", "rotary", "cross_entropy"),
}


@pytest.mark.full
def test_it_measures_every_kernel_of_every_operation(run):
    done = run("gpu.gpu_elementwise", "--tiny", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout[done.stdout.index("{\n") :])["elementwise"]["tiny"]
    assert set(measured) == ROWS
    for kernels in measured.values():
        ways = kernels["reference reference"]
        assert set(ways) == {"forward", "forward and backward"}
        assert all(way["milliseconds"][0] > 0 for way in ways.values())
        assert {way["measured"] for way in ways.values()} == {"launched one by one: cpu has no graphs"}
        assert all(way["of_the_copy"]["median"] == way["of_the_copy"]["all"][0] for way in ways.values())
    assert measured["norm, RMSNorm"]["cpu torch"] == {"declined": "kind RMSNorm; only LayerNorm"}
