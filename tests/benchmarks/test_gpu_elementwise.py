"""The benchmark of the small kernels: on a CPU it runs with a tiny model, or says that there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from structure.sources import ROOT

ROWS = {
    *("norm, LayerNorm", "norm, RMSNorm", "activation, gelu", "activation, gelu_tanh", "activation, swiglu"),
    *("bias_dropout_add, dropout 0.0", "bias_dropout_add, dropout 0.1", "rotary", "cross_entropy"),
}


def run(*arguments):
    command = [sys.executable, "-m", "benchmarks.gpu_elementwise", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, env=environment)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there may be a GPU here")
def test_without_a_gpu_it_says_so_in_two_lines():
    done = run("--keep")
    assert done.returncode == 2
    first, _ = done.stderr.splitlines()
    assert first.startswith("backend 'cuda' (pretrain-cuda 0.1.0) has no usable device: ")


def test_it_measures_every_kernel_of_every_operation():
    done = run("--tiny", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout[done.stdout.index("{\n") :])["elementwise"]["tiny"]
    assert set(measured) == ROWS
    for kernels in measured.values():
        ways = kernels["reference reference"]
        assert set(ways) == {"forward", "forward and backward"}
        assert all(way["of_the_copy"]["median"] > 0 for way in ways.values())
    assert measured["norm, RMSNorm"]["cpu torch"] == {"declined": "kind RMSNorm; only LayerNorm"}
