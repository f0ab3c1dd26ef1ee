"""The triangle: the kit in Triton's interpreter, blocks, dropout and memory."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kit.offline_triangle import loads
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.kernels.dropout import assert_dropout_rate
from pretrain.conformance.suite import TestAttention, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline
from pretrain.plugins.requests import Mask
from pretrain.reference.attention import Attention
from pretrain_cuda import attention

BACKEND = "kit.attentions:triangle"
COSTLY = False  # 2112 tokens take the interpreter minutes; test_conformance.py has them on a GPU


def answer(request):
    return next(answer for answer in attention.answers(request) if answer.name == "triangle_triton")


def inputs(length, groups=4, *, heads=4, size=16, dtype=torch.float32):
    numbers = {"query": heads, "key": groups, "value": groups}
    return {
        name: random(length, 2, number, size, dtype=dtype, seed=seed)
        for seed, (name, number) in enumerate(numbers.items())
    }


def on(device):
    return lambda x: x.to(device)


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 48])
@pytest.mark.parametrize("groups", [4, 2])
def test_every_length_is_cut_into_strips(device, length, groups):
    request = examples.attention(length=length, groups=groups)
    assert_agrees(answer(request).build({}), oracle(request), inputs(length, groups), device)


@pytest.mark.parametrize("block_size", [5, 16, 100])
def test_the_block_size_changes_no_result(device, block_size):
    request = replace(examples.attention(length=21, groups=2), block_size=block_size)
    assert_agrees(answer(request).build({}), oracle(request), inputs(21, 2), device)


@pytest.mark.parametrize("dtype", examples.DTYPES, ids=str)
def test_long_rows_are_processed_in_pieces(device, monkeypatch, dtype):
    monkeypatch.setattr("pretrain_cuda.kernels.triton.triangle_softmax.LONGEST", 32)
    request = replace(examples.attention(dtype, length=70, heads=2), block_size=30)
    assert_agrees(answer(request).build({}), oracle(request), inputs(70, 2, heads=2, dtype=dtype), device)


def kept(kernel, length, device, *, heads=4):
    """Return which weights a kernel keeps with seed 5, bool [s, b, n, keys]: as values the identity shows them."""
    given = inputs(length, heads, heads=heads, size=length)
    given["value"] = torch.eye(length).view(length, 1, 1, length).expand(length, 2, heads, length)
    torch.manual_seed(5)
    return kernel(**{name: x.to(device) for name, x in given.items()}).view(length, 2, heads, length).cpu() != 0


def causal_with(kept, dropout, scale):
    """Return attention in float64 that keeps these weights."""

    def attend(query, key, value):
        scores = torch.einsum("sbnd,kbnd->sbnk", query, key) * scale
        weights = torch.softmax(scores.masked_fill(~below_diagonal(len(query)), -torch.inf), dim=-1)
        return torch.einsum("sbnk,kbnd->sbnd", weights * kept / (1 - dropout), value).flatten(2)

    return attend


def below_diagonal(length):
    return torch.ones(length, length, dtype=torch.bool).tril().view(length, 1, 1, length)


@pytest.mark.parametrize("longest", [4096, 16])
def test_weights_dropped_forward_are_dropped_backward(device, monkeypatch, longest):
    """Against float64 with the same weights kept: the gradients of query and key too."""
    monkeypatch.setattr("pretrain_cuda.kernels.triton.triangle_softmax.LONGEST", longest)
    request = replace(examples.attention(length=40, heads=2, size=40, dropout=0.25), block_size=15)
    kernel = answer(request).build({})
    expected = causal_with(kept(kernel, 40, device, heads=2), 0.25, request.scale)

    def seeded(**x):
        torch.manual_seed(5)
        return kernel(**x)

    assert_agrees(seeded, expected, inputs(40, 2, heads=2, size=40), device)


@pytest.mark.full
@pytest.mark.parametrize("longest", [4096, 16])
def test_every_weight_is_dropped_on_its_own(device, monkeypatch, longest):
    """The overall rate is right; no two rows of 30 keys keep the same ones, and no piece repeats the previous one."""
    monkeypatch.setattr("pretrain_cuda.kernels.triton.triangle_softmax.LONGEST", longest)
    length = 64
    kernel = answer(replace(examples.attention(length=length, size=length, dropout=0.3), block_size=20)).build({})
    keeps = kept(kernel, length, device)
    assert_dropout_rate(0.3, keeps[below_diagonal(length).expand(keeps.shape)])
    rows = keeps[29:, ..., :30].reshape(-1, 30)
    assert len(rows.unique(dim=0)) == len(rows)
    repeats = (keeps[31:, ..., :16] == keeps[31:, ..., 16:32]).all(dim=-1)
    assert repeats.double().mean() < 0.1
    assert not keeps[~below_diagonal(length).expand(keeps.shape)].any()


@pytest.mark.full
def test_the_dropout_mask_comes_from_the_devices_default_generator(device):
    kernel = answer(examples.attention(dropout=0.5)).build({})
    given = {name: x.to(device) for name, x in inputs(33).items()}
    torch.manual_seed(1)
    first, second = kernel(**given), kernel(**given)
    torch.manual_seed(1)
    assert torch.equal(kernel(**given), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("probability", [1e-7, 0.1, 1 / 3, 0.9, 1 - 2**-15])
def test_dropout_keeps_the_expectation(probability):
    from pretrain_cuda.kernels.triton.triangle_softmax import DropoutRate

    dropout = DropoutRate(probability)
    rounded = dropout.threshold / 2**16
    assert rounded > 0
    assert abs(rounded - probability) <= 2**-16
    assert dropout.scale * (1 - rounded) == pytest.approx(1)


@pytest.mark.full
@pytest.mark.parametrize(("length", "blocks"), [(48, 3), (96, 6), (16, 1)])
def test_matmuls_and_stored_weights_are_the_triangles_share_of_the_square(device, length, blocks):
    """(n + 1) / 2n exactly, forward and backward: nothing above the block diagonal is multiplied or kept."""
    request = examples.attention(torch.bfloat16, length=length)
    given = inputs(length, dtype=torch.bfloat16)
    flops = []
    for kernel in (answer(request).build({}), Attention(request)):
        with FlopCounterMode(display=False) as counter:
            forward_backward(kernel, given, on(device))
        flops.append(counter.get_total_flops())
    assert flops[0] * 2 * blocks == flops[1] * (blocks + 1)
    tensors = saved(answer(request).build({}), [x.to(device).requires_grad_() for x in given.values()])
    assert sum(x.numel() for x in tensors[3:]) * 2 * blocks == 2 * 4 * length**2 * (blocks + 1)


def saved(kernel, given):
    """Return what a call keeps for the backward pass: the inputs, and the weights."""
    tensors = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: tensors.append(x) or x, lambda x: x):
        kernel(*given)
    return tensors


@pytest.mark.full
def test_nothing_is_kept_from_one_call_to_the_next(device):
    """A kernel serves other lengths and batches between two equal calls."""
    request = examples.attention()
    kernel = answer(request).build({})
    for length in (33, 20, 47, 33):
        assert_agrees(kernel, oracle(request), inputs(length), device)


@pytest.mark.full
def test_a_second_backward_finds_the_weights_unchanged(device):
    kernel = answer(examples.attention(dropout=0.3)).build({})
    leaves = [x.to(device).requires_grad_() for x in inputs(33).values()]
    output = kernel(*leaves).square().sum()
    first = torch.autograd.grad(output, leaves, retain_graph=True)
    second = torch.autograd.grad(output, leaves)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_without_gradients_a_strip_is_freed_before_the_next(device, monkeypatch):
    from pretrain_cuda.kernels.triton import triangle_softmax

    strips, softmax = [], triangle_softmax.softmax_

    def record(scores, *more):
        assert all(strip() is None for strip in strips)
        strips.append(weakref.ref(scores))
        return softmax(scores, *more)

    monkeypatch.setattr(triangle_softmax, "softmax_", record)
    assert not saved(answer(examples.attention()).build({}), [x.to(device) for x in inputs(48).values()])
    assert len(strips) == 3


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # numpy's, of inf - inf in the interpreter
def test_the_score_divisor_keeps_fp16_scores_finite(device):
    """Scores of 160000 have no fp16; divided by 16 they have."""
    given = {name: torch.full((20, 1, 2, 16), 200.0).half().to(device) for name in ("query", "key")}
    value = random(20, 1, 2, 16, dtype=torch.float16).to(device)
    for divisor, is_finite in ((1.0, False), (16.0, True)):
        request = examples.attention(torch.float16, heads=2, length=20, divisor=divisor)
        kernel = answer(request).build({})
        assert bool(kernel(**given, value=value).isfinite().all()) is is_finite


@pytest.mark.parametrize("problem", ["mask", "lengths"])
def test_it_refuses_what_it_was_not_built_for(device, problem):
    kernel = answer(examples.attention()).build({})
    given = {name: x.to(device) for name, x in inputs(8).items()}
    if problem == "lengths":
        given["key"] = given["key"][:3]
    mask = torch.zeros(2, 1, 1, 8, dtype=torch.bool) if problem == "mask" else None
    with pytest.raises(ValueError, match="needs as many or more, and no mask"):
        kernel(**given, mask=mask)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (examples.attention(mask=Mask.NONE), "mask none; only causal and documents"),
        (examples.attention(mask=Mask.ARBITRARY), "mask arbitrary; only causal and documents"),
        (examples.attention(dropout=1 - 2**-17), "dropout 0.9999923706054688; only below 0.9999847412109375"),
        (examples.attention(torch.float64), "dtype torch.float64; only float32, float16, bfloat16"),
        (
            replace(examples.attention(torch.float16), device_name="Tesla V100-SXM2-16GB"),
            "compute capability 7.0; triton compiles for 8.0 and later",
        ),
    ],
)
def test_a_decline_names_the_unsupported_value(asked, reason):
    declined = answer(asked)
    assert isinstance(declined, Decline)
    assert declined.reason == reason
    assert declined.kind == "triangle"


def test_without_triton_it_declines(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda _: False)
    assert answer(examples.attention()).reason.startswith("triton is not installed; pip install triton")


@pytest.mark.xdist_group("compilation")
@pytest.mark.parametrize("capability", [80, 90])
def test_a_row_is_read_once_and_by_16_bytes(compiler, capability):
    """Compiled kernels: the causal mask splits no load, and the second pass finds the registers."""
    found = compiler(loads, capability)
    seed, tile = 1, 4096 * 2 // (256 * 16)  # loads: of a thread's 16 entries in bf16
    assert found == {"_forward": [tile + seed, tile], "_backward": [2 * tile, 2 * tile]}
