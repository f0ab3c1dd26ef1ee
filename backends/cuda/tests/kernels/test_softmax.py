"""Softmax: the kit on Triton's kernels, every mask, stride and row length, and which kernel is answered with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, forward_backward, oracle, random
from pretrain.conformance.example_calls import example_mask
from pretrain.conformance.suite import TestSoftmax, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda import softmax
from pretrain_cuda.kernels.triton import softmax as softmax_triton

BACKEND = "kit.interpreted"
COSTLY = False  # rows of 2112 keys take the interpreter minutes; test_conformance.py has them on a GPU


def build(request):
    return softmax.answers(request)[0].build({})


def assert_right(request, device, mask=None, heads=4, **how):
    """Compare with float64, for 2 micro batches."""
    kernel, expected = build(request), oracle(request)
    on_device = None if mask is None else mask.to(device)
    inputs = {"scores": random(2, heads, request.queries, request.keys, dtype=request.dtype)}
    return assert_agrees(
        lambda scores: kernel(scores, on_device), lambda scores: expected(scores, mask), inputs, device, **how
    )


def hidden_from(request, mask):
    """Masked positions, as the reference returns them."""
    return oracle(request)(torch.zeros(2, 2, request.queries, request.keys).double(), mask) == 0


@pytest.fixture
def short_registers(monkeypatch):
    """Make every row too long for registers, in blocks of 16."""
    monkeypatch.setattr(softmax_triton, "LONGEST", 0)
    monkeypatch.setattr(softmax_triton, "LONG_BLOCK", 16)


@pytest.mark.parametrize(("queries", "keys"), [(40, 70), (3, 1), (1, 40), (18, 130)])
@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.ARBITRARY], ids=str)
def test_the_last_rows_and_keys_may_fill_a_part_of_a_tile(device, mask, queries, keys):
    request = examples.softmax(mask=mask, queries=queries, keys=keys)
    assert_right(request, device, example_mask(mask, 2, queries, keys), heads=2, floor=0.1)


SHAPES = [(5,), (6, 5), (1, 1, 6, 5), (2, 1, 6, 5), (1, 4, 6, 5), (2, 4, 6, 5), (2, 4, 1, 5), (2, 1, 6, 1), (4, 1, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_mask_may_be_broadcast_in_every_dimension(device, shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    assert_right(examples.softmax(mask=Mask.ARBITRARY, queries=6, keys=5), device, mask, floor=0.1)


def test_a_mask_may_have_any_strides(device):
    mask = (torch.rand(5, 6, 1, 2, generator=torch.Generator().manual_seed(1)) < 0.4).permute(3, 2, 1, 0)
    assert_right(examples.softmax(mask=Mask.ARBITRARY, queries=6, keys=5), device, mask, floor=0.1)


@pytest.mark.parametrize("mask", [Mask.KEY_PADDING, Mask.ARBITRARY], ids=str)
def test_a_mask_is_read_where_it_is(device, monkeypatch, mask):
    launched = []

    class Recorder:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: launched.append(arguments)

    monkeypatch.setattr(softmax_triton, "forward_tile", Recorder())
    tensor = example_mask(mask, 2, 6, 5).to(device)
    build(examples.softmax(mask=mask, queries=6, keys=5))(torch.zeros(2, 4, 6, 5, device=device), tensor)
    ((_, given, *_),) = launched
    assert given.data_ptr() == tensor.data_ptr()
    assert given.stride()[:2] == (tensor.stride(0), 0)


@pytest.mark.parametrize(
    ("mask", "dtype"),
    [
        (Mask.NONE, torch.float16),
        (Mask.CAUSAL, torch.float32),
        (Mask.KEY_PADDING, torch.bfloat16),
        (Mask.ARBITRARY, torch.float32),
    ],
    ids=str,
)
def test_rows_that_are_too_long_for_registers_are_read_twice(device, short_registers, mask, dtype):
    request = examples.softmax(dtype, mask, queries=3, keys=37)
    assert_right(request, device, example_mask(mask, 2, 3, 37), heads=2, floor=0.1, is_strided=True)


@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL], ids=str)
def test_the_gradient_of_a_long_row_is_scaled_too(device, short_registers, mask):
    request = examples.softmax(mask=mask, queries=3, keys=37, scale=0.25)
    assert_right(request, device, None, heads=2)


def test_a_long_row_s_maximum_may_be_anywhere(device, short_registers):
    """Rising, falling and equal scores: earlier sums are rescaled at a new maximum."""
    request = examples.softmax(mask=Mask.NONE, queries=3, keys=50)
    scores = torch.stack([torch.arange(50.0), -torch.arange(50.0), torch.zeros(50)]).expand(1, 1, 3, 50) * 7
    assert_agrees(build(request), oracle(request), {"scores": scores}, device)


@pytest.mark.parametrize("mask", [Mask.CAUSAL, Mask.ARBITRARY], ids=str)
def test_rows_beyond_the_longest_that_registers_hold(device, mask):
    keys = softmax_triton.LONGEST + 5
    request = examples.softmax(torch.bfloat16, mask, queries=2, keys=keys)
    tensor = example_mask(mask, 1, 2, keys)
    inputs = {"scores": random(1, 1, 2, keys, dtype=torch.bfloat16)}
    kernel, expected = build(request), oracle(request)
    on_device = None if tensor is None else tensor.to(device)
    assert_agrees(lambda scores: kernel(scores, on_device), lambda scores: expected(scores, tensor), inputs, device)


def test_the_longest_row_that_registers_hold(device):
    request = examples.softmax(torch.float16, queries=2, keys=softmax_triton.LONGEST)
    inputs = {"scores": random(1, 1, 2, softmax_triton.LONGEST, dtype=torch.float16)}
    assert_agrees(build(request), oracle(request), inputs, device)


CASES = [("causal", 9, 5), ("causal", 5, 9), ("key_padding", 5, 9), ("arbitrary", 5, 9)]


@pytest.mark.parametrize(("kind", "queries", "keys"), CASES)
@pytest.mark.parametrize("length", ["in registers", "long"])
def test_masked_keys_have_no_effect_and_get_exactly_zero(device, request, kind, queries, keys, length):
    """Masked scores may be nan, and so may their gradients. Queries that see no key are among them."""
    if length == "long":
        request.getfixturevalue("short_registers")
    asked = examples.softmax(mask=Mask(kind), queries=queries, keys=keys)
    mask = example_mask(asked.mask, 2, queries, keys)
    if mask is not None:
        mask = mask.expand(2, 1, -1, -1).clone()
        mask[1, :, -1:] = True
    hidden = hidden_from(asked, mask)
    on_device = None if mask is None else mask.to(device)
    scores, grad = (random(2, 2, queries, keys, dtype=torch.float32, seed=seed) for seed in (0, 7))
    given = scores.masked_fill(hidden, torch.nan)
    kernel = build(asked)
    actual = forward_backward(
        lambda scores: kernel(scores, on_device),
        {"scores": given},
        lambda x: x.to(device),
        grad.masked_fill(hidden, torch.nan),
    )
    expected = forward_backward(
        lambda scores: oracle(asked)(scores, mask), {"scores": scores.double()}, lambda x: x, grad
    )
    for name, value in expected.items():
        result = actual[name].cpu()
        assert not result[hidden].count_nonzero(), name
        torch.testing.assert_close(result.double(), value, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, in the interpreter
@pytest.mark.parametrize("length", ["in registers", "long"])
def test_a_score_that_is_not_a_number_is_not_hidden(device, request, length):
    if length == "long":
        request.getfixturevalue("short_registers")
    scores = torch.zeros(1, 1, 3, 20, device=device)
    scores[..., 1, 3] = torch.nan
    scores[..., 2, 3] = torch.inf
    weights = build(examples.softmax(mask=Mask.NONE, queries=3, keys=20))(scores)
    assert weights.isnan().all(-1).flatten().tolist() == [False, True, True]


@pytest.mark.parametrize("scale", [-0.3, 0.0, 0.125])
def test_scores_are_scaled_forward_and_backward(device, scale):
    results = assert_right(examples.softmax(scale=scale), device, floor=1e-3)
    assert bool(results["gradient of scores"].any()) is (scale != 0)


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_fp16_and_bf16_are_computed_in_fp32_even_if_not_requested(device, dtype):
    request = replace(examples.softmax(dtype, scale=4096.0), in_fp32=False)
    scores = {"scores": random(2, 4, 33, 33, dtype=dtype) * 1e-3 + 20}
    assert_agrees(build(request), oracle(request), scores, device)


@pytest.mark.full
def test_a_gradient_may_be_one_number_for_all(device):
    """A gradient as sum() gives it: with stride 0 in every dimension. Weights add up to 1 for any scores."""
    scores = random(2, 4, 33, 33, dtype=torch.float32).to(device).requires_grad_()
    build(examples.softmax())(scores).sum().backward()
    assert scores.grad.abs().max() < 1e-6


@pytest.mark.parametrize("shape", [(0, 4, 33, 33), (2, 4, 0, 33)], ids=str)
def test_empty_input_gives_empty_output(device, shape):
    scores = torch.zeros(shape, device=device, requires_grad=True)
    weights = build(examples.softmax())(scores)
    weights.sum().backward()
    assert weights.shape == scores.grad.shape == shape


@pytest.mark.parametrize("mask", Mask, ids=str)
def test_a_mask_of_another_kind_is_refused(device, mask):
    takes = mask in (Mask.KEY_PADDING, Mask.ARBITRARY)
    given = None if takes else torch.zeros(33, 33, dtype=torch.bool, device=device)
    with pytest.raises(ValueError, match=f"built for the mask '{mask}' was called with"):
        build(examples.softmax(mask=mask))(torch.zeros(2, 4, 33, 33, device=device), given)


def test_a_second_derivative_is_an_error(device):
    scores = torch.zeros(1, 1, 3, 3, device=device, requires_grad=True)
    (grad,) = torch.autograd.grad(build(examples.softmax())(scores).square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("queries", "keys", "forward", "backward"),
    [
        (2048, 2048, (2, 2048, 4), (1, 2048, 4)),
        (2048, 128, (32, 128, 4), (16, 128, 4)),
        (8192, 8192, (1, 8192, 8), (1, 8192, 16)),
        (16384, 16384, (1, 16384, 16), (1, 16384, 32)),
        (1, 1, (1, 1, 4), (1, 1, 4)),
        (3, 2047, (2, 2048, 4), (1, 2048, 4)),
    ],
)
def test_tiles(queries, keys, forward, backward):
    assert softmax_triton.tile(queries, keys, softmax_triton.FORWARD) == forward
    assert softmax_triton.tile(queries, keys, softmax_triton.BACKWARD) == backward


def test_tritons_comes_first_and_says_what_compiles_it():
    triton, apex, apex_generic = softmax.answers(examples.softmax(torch.bfloat16))
    assert isinstance(triton, Offer)
    assert (triton.name, triton.provider.split()[0]) == ("triton", "triton")
    assert [apex.name, apex_generic.name] == ["apex", "apex_generic"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": torch.float64}, "dtype torch.float64; only float32, float16, bfloat16"),
        (
            {"device_name": "Tesla V100-SXM2-32GB"},
            "compute capability 7.0; triton compiles for 8.0 and later",
        ),
    ],
)
def test_a_decline_of_triton_names_the_unsupported_value(changes, reason):
    answer = softmax.answers(replace(examples.softmax(), **changes))[0]
    assert isinstance(answer, Decline)
    assert answer.reason == reason


def test_the_reason_of_missing_triton_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda module: module != "triton")
    answer = softmax.answers(examples.softmax())[0]
    assert isinstance(answer, Decline)
    assert answer.reason.startswith("triton is not installed; pip install triton")
