"""Bias and activation in Triton: the kit, cases beyond it, and declined requests."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, assert_repeats, forward_backward, oracle, random
from pretrain.conformance.suite import TestActivation, TestCallOrder, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline
from pretrain_cuda import activation

BACKEND = "kit.interpreted"
COSTLY = False  # 24576 features take the interpreter minutes; test_conformance.py has them on a GPU
KINDS = ["gelu", "gelu_tanh", "swiglu"]

# numpy warns of overflow for the sigmoid of less than -88; the result 0 is right.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def build(request):
    return activation.answers(request).build({})


def inputs(kind, rows, features, dtype=torch.float32):
    width = features * 2 if kind == "swiglu" else features
    return {"x": random(rows, 2, width, dtype=dtype) * 2, "bias": random(width, dtype=dtype, seed=1)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [7, 8, 9, 20])
def test_bias_gradients_are_summed_over_all_tiles_of_all_programs(device, monkeypatch, kind, rows):
    """Programs of two tiles of eight rows and sixteen columns; the last ones are cut off."""
    monkeypatch.setattr("pretrain_cuda.kernels.triton.activation.STEPS", 2)
    monkeypatch.setattr("pretrain_cuda.kernels.triton.activation.TILE_COLUMNS", 16)
    request = examples.activation(kind=kind, features=37)
    assert_agrees(build(request), oracle(request), inputs(kind, rows, 37), device)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_every_call(device, kind):
    request = examples.activation(kind=kind)
    assert_repeats(build(request), oracle(request), inputs(kind, 33, 48), device)


@pytest.mark.parametrize("kind", KINDS)
def test_large_inputs_stay_finite(device, kind):
    """fp16 up to its largest: the activation is the input or zero, its derivative one or zero."""
    request = examples.activation(torch.float16, kind, features=4, has_bias=False)
    x = torch.tensor([-65504.0, -100.0, 100.0, 65504.0]).half()
    given = {"x": torch.cat((x, torch.ones(4).half())) if kind == "swiglu" else x}
    results = forward_backward(build(request), given, lambda x: x.to(device), torch.ones(4).half())
    assert results["output"].tolist() == [0, 0, 100, 65504]
    assert results["gradient of x"][:4].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_give_no_rows_and_zero_gradients(device, kind):
    results = forward_backward(build(examples.activation(kind=kind)), inputs(kind, 0, 48), lambda x: x.to(device))
    assert results["output"].shape == (0, 2, 48)
    assert not results["gradient of bias"].any()


def test_nothing_but_the_inputs_is_saved(device):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.shape), lambda x: x):
        x = torch.randn(5, 2, 96, device=device, requires_grad=True)
        build(examples.activation(kind="swiglu"))(x, torch.randn(96, device=device))
    assert saved == [(5, 2, 96), (96,)]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (examples.activation(torch.float64), "dtype torch.float64; only float32, float16, bfloat16"),
        (examples.activation(), "triton is not installed; pip install triton (torch for CUDA brings it on Linux)"),
    ],
)
def test_a_decline_names_the_unsupported_value(monkeypatch, request_, reason):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: False)
    declined = activation.answers(request_)
    assert isinstance(declined, Decline)
    assert declined.reason == reason


def test_a_v100_is_older_than_what_triton_compiles_for():
    request = replace(examples.activation(torch.float16), device_name="Tesla V100-SXM2-32GB")
    assert activation.answers(request).reason == "compute capability 7.0; triton compiles for 8.0 and later"
