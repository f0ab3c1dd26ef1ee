"""Plans for a GPU that is not there: kernels are those that it would get, and what they keep is counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("plans of an A100")]
TESTS = Path(__file__).parents[3]
SCORES = 2 * 4 * 512 * 512  # micro batch x heads x queries x keys


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> dict:
    """All cases, traced in one process that has not installed a bridge for the CPU."""
    output = tmp_path_factory.mktemp("traces") / "found.json"
    command = [sys.executable, "-W", "ignore", "-m", "tools.plan.trace.named_device", str(output)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(output.read_text())


def test_kernels_are_those_of_the_named_device(traced):
    assert traced["flash"]["kernels"]["attention"] == "sdpa_flash"
    assert traced["flash"]["kernels"]["norm"] == "triton"


def test_states_follow_from_the_parameters(traced):
    """bf16 weights, fp32 gradients, and fp32 main weights and moments, all on every rank."""
    parts, parameters = traced["flash"]["parts"], traced["flash"]["parameters"]
    assert parts["weights"] == pytest.approx(2 * parameters, rel=0.02)
    assert parts["gradients"] == pytest.approx(4 * parameters, rel=0.02)
    assert parts["optimizer"] == pytest.approx(12 * parameters, rel=0.02)


def test_flash_attention_keeps_no_weights_of_keys(traced):
    """Stored weights are those of two layers in bf16, beside what both keep."""
    difference = traced["softmax"]["most activations"] - traced["flash"]["most activations"]
    assert difference == pytest.approx(2 * 2 * SCORES, rel=0.5)


def test_dropout_keeps_a_mask_of_bytes(traced):
    """A layer keeps the dropped weights and a bool mask more."""
    difference = traced["dropout"]["most activations"] - traced["softmax"]["most activations"]
    assert difference >= 2 * (2 + 1) * SCORES


def test_tensor_parallelism_splits_the_weights(traced):
    """Those of positions are whole on both ranks."""
    positions = 512 * 256
    split, whole = (traced[case]["parameters"] - positions for case in ("split", "flash"))
    assert split == pytest.approx(whole / 2, rel=0.01)


def test_offloaded_state_is_on_the_host(traced):
    """Main weights, moments and gradients of half the parameters, in fp32: ZeRO-2 over two ranks; and its buffers."""
    parameters = traced["offload"]["parameters"]
    states = 4 * 4 * parameters / 2
    assert states <= traced["offload"]["host"] <= 1.5 * states
    assert traced["offload"]["parts"]["optimizer"] < 0.2 * traced["ZeRO-2"]["parts"]["optimizer"]
    assert traced["ZeRO-2"]["host"] < 2**20


def test_buckets_of_zero_are_gradients(traced):
    """Two of half a billion entries in bf16, and activations of a model of two layers."""
    parts = traced["ZeRO-2"]["parts"]
    assert parts["gradients"] > 10 * parts["activations"]
