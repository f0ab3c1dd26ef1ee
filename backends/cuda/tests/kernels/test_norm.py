"""The norms: the kit on all that run here, what is declined, and apex's by modules with its signatures.

apex itself was not run: FastLayerNormFN and the functions of apex.normalization are stood in for.
"""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from kit.pairs import one_on_a_commit
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.suite import TestNorm, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline, Offer
from pretrain_cuda import norm

BACKEND = "kit.interpreted"


def answer(name, request):
    return next(answer for answer in norm.answers(request) if answer.name == name)


def inputs(rows, hidden, kind="LayerNorm", dtype=torch.float32):
    weights = {"weight": random(hidden, dtype=dtype, seed=1) + 1}
    if kind == "LayerNorm":
        weights["bias"] = random(hidden, dtype=dtype, seed=2)
    return {"x": random(rows, 1, hidden, dtype=dtype)} | weights


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("rows", [1, 11, 12, 13, 40])
def test_weight_gradients_are_summed_over_all_tiles_of_all_programs(device, monkeypatch, kind, rows):
    """Three programs of four rows at a time; some have one tile more than others."""
    monkeypatch.setattr("pretrain_cuda.kernels.triton.norm.PROGRAMS", 3)
    monkeypatch.setattr("pretrain_cuda.kernels.triton.norm.TILE", 256)
    request = examples.norm(kind=kind, hidden=50)
    kernel = answer("triton", request).build({})
    assert_agrees(kernel, oracle(request), inputs(rows, 50, kind), device)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["LayerNorm", pytest.param("RMSNorm", marks=pytest.mark.full)])
def test_a_long_row_is_taken_in_one_pass_forward_and_in_turns_backward(device, kind):
    request = examples.norm(torch.bfloat16, kind, hidden=16400)
    kernel = answer("triton", request).build({})
    assert_agrees(kernel, oracle(request), inputs(2, 16400, kind, torch.bfloat16), device)


KINDS = [("LayerNorm", 120), ("RMSNorm", 130), ("LayerNorm", 130), ("RMSNorm", 120)]


@pytest.mark.parametrize(("rows", "kind", "hidden"), one_on_a_commit([1, 7, 8, 9, 50], KINDS))
def test_long_rows_have_the_gradients_of_short_ones(device, monkeypatch, kind, hidden, rows):
    """Make rows be read by 32 columns; the weights' in three chunks of four rows and tiles of 64 columns."""
    monkeypatch.setattr("pretrain_cuda.kernels.triton.norm.LONGEST", 64)
    for name, value in (("BLOCK", 32), ("TILE_ROWS", 4), ("TILE_COLUMNS", 64), ("CHUNKS", 3)):
        monkeypatch.setattr(f"pretrain_cuda.kernels.triton.norm_long.{name}", value)
    request = examples.norm(kind=kind, hidden=hidden)
    kernel = answer("triton", request).build({})
    assert_agrees(kernel, oracle(request), inputs(rows, hidden, kind), device)


def test_a_long_layer_norm_without_bias(device, monkeypatch):
    monkeypatch.setattr("pretrain_cuda.kernels.triton.norm.LONGEST", 64)
    request = examples.norm(hidden=100)
    given = inputs(5, 100)
    del given["bias"]
    assert_agrees(answer("triton", request).build({}), oracle(request), given, device)


def test_no_rows_give_no_rows_and_zero_gradients(device):
    kernel = answer("triton", examples.norm()).build({})
    results = forward_backward(kernel, inputs(0, 48), lambda x: x.to(device))
    assert results["output"].shape == (0, 1, 48)
    assert not results["gradient of weight"].any()


@pytest.mark.parametrize("name", ["triton", "torch"])
def test_rms_norm_refuses_a_bias(device, name):
    kernel = answer(name, examples.norm(kind="RMSNorm")).build({})
    with pytest.raises(ValueError, match="RMSNorm has no bias"):
        kernel(*(x.to(device) for x in inputs(2, 48).values()))


MIXED = examples.norm(torch.bfloat16, weight_dtype=torch.float32, hidden=1024)
NOT_BUILT = "is not installed; apex (github.com/NVIDIA/apex) brings it when it is built with"


@pytest.mark.parametrize(
    ("name", "request_", "reason"),
    [
        ("apex_fast", examples.norm(kind="RMSNorm"), "kind RMSNorm; only LayerNorm"),
        ("apex_fast", examples.norm(hidden=6000), "hidden size 6000; only those that apex lists, the nearest is 6144"),
        ("apex_fast", MIXED, "weights in torch.float32 for torch.bfloat16; only both in one dtype"),
        ("apex_fast", examples.norm(hidden=1024), f"fast_layer_norm {NOT_BUILT} --fast_layer_norm"),
        ("apex", MIXED, "weights in torch.float32 for torch.bfloat16; only both in one dtype"),
        ("apex", examples.norm(torch.float64), "dtype torch.float64; only float32, float16, bfloat16"),
        ("apex", examples.norm(kind="RMSNorm"), f"fused_layer_norm_cuda {NOT_BUILT} --cuda_ext"),
        ("triton", examples.norm(hidden=32769), "hidden size 32769; at most 32768"),
        ("triton", examples.norm(torch.float64), "dtype torch.float64; only float32, float16, bfloat16"),
        ("torch", MIXED, "weights in torch.float32 for torch.bfloat16; only both in one dtype"),
    ],
)
def test_a_decline_names_the_unsupported_value(monkeypatch, name, request_, reason):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: module == "triton")
    declined = answer(name, request_)
    assert isinstance(declined, Decline)
    assert declined.reason == reason


class FastLayerNormFN:
    """apex contrib/layer_norm/layer_norm.py: apply(x, gamma, beta, epsilon, memory_efficient=False)."""

    @staticmethod
    def apply(x, gamma, beta, epsilon, memory_efficient=False):
        assert type(memory_efficient) is bool
        return F.layer_norm(x, gamma.shape, gamma, beta, epsilon)


class FusedLayerNormAffineFunction:
    """apex normalization/fused_layer_norm.py: apply(input, weight, bias, normalized_shape, eps, ...)."""

    @staticmethod
    def apply(input, weight, bias, normalized_shape, eps, memory_efficient=False):  # noqa: A002  apex's name
        assert type(memory_efficient) is bool
        return F.layer_norm(input, normalized_shape, weight, bias, eps)


class FusedRMSNormAffineFunction:
    """apex normalization/fused_layer_norm.py: apply(input, weight, normalized_shape, eps, ...)."""

    @staticmethod
    def apply(input, weight, normalized_shape, eps, memory_efficient=False):  # noqa: A002  apex's name
        assert type(memory_efficient) is bool
        return F.rms_norm(input, normalized_shape, weight, eps)


@pytest.fixture
def apex(monkeypatch):
    fast, fused = ModuleType("apex.contrib.layer_norm.layer_norm"), ModuleType("apex.normalization.fused_layer_norm")
    fast.FastLayerNormFN = FastLayerNormFN
    fused.FusedLayerNormAffineFunction = FusedLayerNormAffineFunction
    fused.FusedRMSNormAffineFunction = FusedRMSNormAffineFunction
    for module in (fast, fused):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: True)
    monkeypatch.setattr("pretrain.plugins.installed.provider", lambda distribution: f"{distribution} 0.1")


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_apex_is_called_as_it_is_declared(apex, kind, dtype):
    request = examples.norm(dtype, kind, hidden=768)
    names = ["apex_fast", "apex"] if kind == "LayerNorm" else ["apex"]
    for name in names:
        offer = answer(name, request)
        assert offer.provider == "apex 0.1"
        kernel = offer.build({})
        assert_agrees(kernel, oracle(request), inputs(3, 768, kind, dtype), torch.device("cpu"))


def test_a_layer_norm_without_bias_is_given_zeros(apex):
    request = examples.norm(hidden=768)
    x, weight, _ = inputs(3, 768).values()
    for name in ("apex_fast", "apex"):
        torch.testing.assert_close(answer(name, request).build({})(x, weight), F.layer_norm(x, (768,), weight))


def test_apex_refuses_more_entries_than_its_kernels_count(apex):
    kernel = answer("apex", examples.norm(hidden=2**16)).build({})
    x = torch.empty(2**15, 1, 2**16, device="meta")
    with pytest.raises(ValueError, match=r"at most 2147483647 entries, got \[32768, 1, 65536\]"):
        kernel(x, x[0, 0], x[0, 0])


def test_apex_comes_first_then_triton_then_torch(apex):
    offers = norm.answers(examples.norm(hidden=768))
    assert [offer.name for offer in offers] == ["apex_fast", "apex", "triton", "torch"]
    assert all(isinstance(offer, Offer) for offer in offers)


def test_asking_imports_neither_triton_nor_apex(monkeypatch):
    monkeypatch.setattr("pretrain_cuda.norm.import_module", lambda name: pytest.fail(f"{name} was imported"))
    assert len(norm.answers(examples.norm())) == 4
