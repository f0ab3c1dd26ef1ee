"""Stand-ins of the libraries' kernels: against torch's own for meta tensors, and what the sources allocate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.nn.attention import SDPBackend

from pretrain.conformance import examples
from pretrain.conformance.example_calls import example_call
from pretrain.conformance.footprint import Allocations, footprint, peak_bytes
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda import attention, linear, norm, optimizer, softmax
from pretrain_cuda.kernels.sdpa import Sdpa
from pretrain_cuda.kernels.stand_ins import sdpa
from pretrain_cuda.kernels.stand_ins.flash_generations import workspace_2

BF16, FP32 = torch.bfloat16, torch.float32
A100, H100, B200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200"
GPT3 = {"length": 2048, "heads": 12, "size": 128, "batch": 1}
"""Attention of one of eight tensor-parallel ranks."""

ROWS = 2048 * 12
"""Rows of its scores."""

OF_DOCUMENTS = {"mask": Mask.DOCUMENTS}
"""The same with documents: 6 in a sample."""

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def everything_is_installed(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: True)
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91501)


@pytest.fixture(autouse=True)
def fakes():
    with FakeTensorMode():
        yield


def taken(answers, request, name, device=A100):
    listed = answers(replace(request, device_type="cuda", device_name=device))
    listed = listed if isinstance(listed, list) else [listed]
    return next(offer for offer in listed if offer.name == name and isinstance(offer, Offer))


def measured(kernel, request, tokens=16):
    """Return what a call keeps, and what it allocates beside that, all gradients and an output that is not kept."""
    with unset_fake_temporarily():  # documents' ends are read on the host
        example = example_call(request, tokens)
    call = example.placed(lambda x: torch.empty(x.shape, dtype=x.dtype))
    found = footprint(kernel, call)
    (shape, dtype), gradients = found.output, [x.numel() * x.itemsize for x in call.inputs.values()]
    return found, peak_bytes(kernel, call) - sum(found.kept) - sum(gradients) - math.prod(shape) * dtype.itemsize


def fake(answers, request, name, device=A100):
    return measured(taken(answers, request, name, device).fake({}), request)


def own(kernel):
    """Return an attention by torch's operators, which run on fake tensors of any device by their meta kernels."""
    functions = {
        SDPBackend.FLASH_ATTENTION: lambda q, k, v, mask, **given: aten._scaled_dot_product_flash_attention(
            q, k, v, given["dropout_p"], given["is_causal"], scale=given["scale"]
        ),
        SDPBackend.EFFICIENT_ATTENTION: lambda q, k, v, mask, **given: aten._scaled_dot_product_efficient_attention(
            q, k, v, mask, True, given["dropout_p"], given["is_causal"], scale=given["scale"]
        ),
        SDPBackend.CUDNN_ATTENTION: lambda q, k, v, mask, **given: aten._scaled_dot_product_cudnn_attention(
            q, k, v, mask, True, given["dropout_p"], given["is_causal"], scale=given["scale"]
        ),
    }

    def function(q, k, v, attn_mask=None, **given):
        bias = None if attn_mask is None else torch.zeros_like(attn_mask, dtype=q.dtype).expand(*q.shape[:3], -1)
        return functions[kernel](q, k, v, bias, **given)[0]

    return function


@pytest.mark.parametrize(
    ("kernel", "asked"),
    [
        (SDPBackend.FLASH_ATTENTION, examples.attention(BF16, length=65, dropout=0.5)),
        (SDPBackend.FLASH_ATTENTION, examples.attention(BF16, length=65, groups=2)),
        (SDPBackend.CUDNN_ATTENTION, examples.attention(BF16, length=65)),
        (SDPBackend.EFFICIENT_ATTENTION, examples.attention(FP32, length=65)),
        (SDPBackend.EFFICIENT_ATTENTION, examples.attention(BF16, Mask.ARBITRARY, length=64, groups=2)),
    ],
)
def test_sdpa_keeps_what_torch_says(kernel, asked):
    expected, _ = measured(Sdpa(asked, kernel, own(kernel)), asked)
    found, _ = measured(Sdpa(asked, kernel, sdpa.function(asked, kernel, 108)), asked)
    assert expected.difference(found) == ""


@pytest.mark.parametrize("kind", ["LayerNorm", "RMSNorm"])
def test_torch_s_norm_has_statistics_in_fp32(kind):
    asked = examples.norm(BF16, kind, hidden=768)
    x, weight = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((320, 2, 768), (768,)))
    if kind == "LayerNorm":
        statistics = aten.native_layer_norm(x, (768,), weight, weight, 1e-5)[1:]
    else:
        statistics = aten._fused_rms_norm(x, [768], weight, 1e-5)[1:]
    found, _ = measured(taken(norm.answers, asked, "torch").fake({}), asked, tokens=320)
    assert found.kept == tuple(x.numel() * x.itemsize for x in statistics)
    assert found.kept == (2560,) * len(statistics)


def test_flash_attn_2_keeps_what_torch_s_flash_keeps():
    asked = examples.attention(BF16, length=65, dropout=0.5)
    found, _ = fake(attention.answers, asked, "flash_attn_2")
    expected, _ = fake(attention.answers, asked, "sdpa_flash")
    assert found.kept_inputs == {"query", "key", "value"}
    assert sum(found.kept) == sum(expected.kept) - 512  # torch has an offset beside the seed


@pytest.mark.parametrize(("batch", "kept"), [(1, {"query", "key", "value", "mask"}), (2, {"mask"})])
@pytest.mark.parametrize("name", ["flash_attn_2", "flash_attn_3", "flash_attn_4"])
def test_documents_of_several_samples_are_kept_as_one_sequence(name, batch, kept):
    """Queries, keys and values are then copies; the statistic of the rows has no padding, and the ends are kept."""
    asked = examples.attention(BF16, **(GPT3 | OF_DOCUMENTS | {"batch": batch}))
    found, _ = fake(attention.answers, asked, name, H100)
    assert found.kept_inputs == kept
    tensors = 1 if batch == 1 else 4
    assert 0 <= sum(found.kept) - batch * ROWS * (tensors * 128 * 2 + 4) <= 512


def test_flash_attn_2_pads_heads_to_a_multiple_of_8_and_keeps_them():
    found, _ = fake(attention.answers, examples.attention(BF16, size=60, length=64), "flash_attn_2")
    assert found.kept_inputs == set()
    assert found.kept.count(64 * 2 * 4 * 64 * 2) == 4


@pytest.mark.parametrize(
    ("name", "device", "asked", "expected"),
    [
        ("flash_attn_2", A100, {}, ROWS * 4 * (128 + 1)),
        ("flash_attn_2", A100, {"groups": 3}, ROWS * (4 * (128 + 1) + 2 * 2 * 128)),
        ("flash_attn_2", A100, {"deterministic": True}, ROWS * 4 * (9 * 128 + 1)),  # 108 multiprocessors, 12 heads
        ("flash_attn_3", H100, {}, ROWS * 4 * (128 + 2)),
        ("flash_attn_3", H100, {"groups": 3}, ROWS * 4 * (128 + 2) + 2 * 2048 * 3 * 128 * 4),
        ("flash_attn_4", B200, {}, ROWS * 4 * (128 + 2)),
        ("flash_attn_4", B200, {"size": 256}, ROWS * 4 * 2),
        ("flash_attn_2", A100, OF_DOCUMENTS, (2048 + 6 * 128) * 12 * 4 * (128 + 1)),
        ("flash_attn_2", A100, OF_DOCUMENTS | {"deterministic": True}, (2048 + 6 * 128) * 12 * 4 * (2 * 128 + 1)),
        ("flash_attn_3", H100, OF_DOCUMENTS, (2048 + 6 * 64) * 12 * 4 * (128 + 2)),
        (
            "flash_attn_4",
            B200,
            OF_DOCUMENTS | {"groups": 3},
            (2048 + 6 * 128) * 12 * 4 * (128 + 2) + 2 * (2048 + 7 * 256 - 256) * 3 * 128 * 4,
        ),
    ],
)
def test_workspace_of_flash_attn_in_the_backward_pass(name, device, asked, expected):
    """fp32 sums of the query's gradient, statistics of its rows, and those of keys that heads share."""
    _, workspace = fake(attention.answers, examples.attention(BF16, **(GPT3 | asked)), name, device)
    assert workspace == expected


def test_workspace_rounds_queries_and_heads():
    q = torch.empty(1, 100, 2, 136, dtype=BF16)
    assert [tuple(x.shape) for x in workspace_2(q, q)] == [(1, 2, 128), (1, 1, 128, 2, 192)]


@pytest.mark.parametrize("name", ["flash_attn_2", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "transformer_engine"])
def test_no_fused_attention_keeps_weights(name):
    found, _ = fake(attention.answers, examples.attention(BF16, **GPT3), name)
    assert found.output == ((2048, 1, 12 * 128), BF16)
    assert found.kept_inputs == {"query", "key", "value"}
    assert ROWS * (128 * 2 + 4) <= sum(found.kept) <= ROWS * (128 * 2 + 4) + 2048


@pytest.mark.parametrize(("name", "statistics"), [("apex", 2), ("apex_fast", 2)])
def test_apex_norms(name, statistics):
    found, _ = fake(norm.answers, examples.norm(BF16, hidden=768), name)
    assert found.kept_inputs == ({"x", "weight", "bias"} if name == "apex" else {"x", "weight"})
    assert found.kept == (512,) * statistics


@pytest.mark.parametrize(("mask", "name", "copies"), [(Mask.CAUSAL, "apex", 1), (Mask.KEY_PADDING, "apex_generic", 2)])
def test_apex_softmax_keeps_the_weights(mask, name, copies):
    """Its wrapper copies the gradient, and the causal one writes over that."""
    asked = examples.softmax(torch.float16, mask, queries=64, keys=64, heads=8, scale=0.125)
    found, workspace = fake(softmax.answers, asked, name)
    assert found.kept == (2 * 8 * 64 * 64 * 2,)
    assert workspace >= (copies - 1) * found.kept[0]


def test_the_linear_of_apex_adds_in_place():
    found, workspace = fake(linear.answers, examples.linear(BF16, main_grad_dtype=FP32), "apex")
    assert found.kept_inputs == {"x", "weight"}
    assert workspace <= 16 * 2 * 40 * 2 + 3 * 512  # the output


@pytest.mark.parametrize("name", ["fused", "apex"])
def test_an_optimizer_has_two_moments(name):
    kernels = taken(optimizer.answers, examples.optimizer(), name).fake({})
    parameter = torch.nn.Parameter(torch.empty(1000))
    parameter.grad = torch.empty(1000)
    stepping = kernels.adam([parameter], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, adam_w_mode=True)
    with Allocations() as allocations:
        stepping.step()
    assert {key: tuple(x.shape) for key, x in stepping.state[parameter].items()} == {
        "exp_avg": (1000,),
        "exp_avg_sq": (1000,),
    }
    assert stepping.param_groups[0]["step"] == 1
    assert 2 * 4096 <= allocations.peak <= 2 * 4096 + 512  # and a step as a tensor
    assert kernels.gradient_norm([parameter.grad]).shape == kernels.gradient_norm([]).shape == ()
