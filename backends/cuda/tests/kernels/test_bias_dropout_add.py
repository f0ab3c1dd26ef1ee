"""residual + dropout(x + bias) in Triton: the kit, cases beyond it, and declined requests."""

from __future__ import annotations

import pytest
import torch

from kit.pairs import one_on_a_commit
from pretrain.conformance import examples
from pretrain.conformance.comparison import forward_backward, random
from pretrain.conformance.suite import TestBiasDropoutAdd, TestRandom, pytest_generate_tests, subject  # noqa: F401
from pretrain.conformance.tensor_error import assert_near
from pretrain.plugins.offer import Decline
from pretrain_cuda import bias_dropout_add

BACKEND = "kit.interpreted"


def build(**settings):
    return bias_dropout_add.answers(examples.bias_dropout_add(**settings)).build({})


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of 8 rows and 16 columns, two of them one after the other in a program of the backward pass."""
    module = "pretrain_cuda.kernels.triton.bias_dropout_add"
    build()  # imports it
    for name, value in {"QUARTER": 2, "COLUMNS": 16, "STEPS": 2}.items():
        monkeypatch.setattr(f"{module}.{name}", value)


@pytest.mark.parametrize(
    ("rows", "dtype"), one_on_a_commit([8, 15, 16, 17, 50], [torch.float32, torch.bfloat16]), ids=str
)
def test_the_backward_pass_drops_what_the_forward_pass_dropped(device, small_tiles, rows, dtype):
    """The mask is the same in every tile, the last ones are cut off, and after other random draws."""
    kernel = build(dtype=dtype, hidden=37, dropout=0.3)
    shapes = {"x": (rows, 1, 37), "bias": (37,), "residual": (rows, 1, 37)}
    inputs = {name: random(*shape, dtype=dtype, seed=seed) for seed, (name, shape) in enumerate(shapes.items())}
    inputs["x"] += 9  # dropped entries are distinguishable, in fp16 and bf16 too

    def then_draws(**leaves):
        y = kernel(**leaves)
        torch.rand(5, device=device)
        return y

    grad_y = random(rows, 1, 37, dtype=dtype, seed=7)
    results = forward_backward(then_draws, inputs, lambda x: x.to(device), grad_y)
    whole = (inputs["x"].double() + inputs["bias"].double()) / 0.7
    kept = (results["output"].cpu().double() - inputs["residual"].double()).abs() > whole.abs() / 2
    assert_near(results["output"], inputs["residual"].double() + whole.where(kept, 0), dtype, "output")
    grad = (grad_y.double() / 0.7).where(kept, 0)
    assert_near(results["gradient of x"], grad, dtype, "gradient of x")
    assert_near(results["gradient of bias"], grad.sum((0, 1)), dtype, "gradient of bias")
    assert_near(results["gradient of residual"], grad_y.double(), dtype, "gradient of residual")


@pytest.mark.full
def test_no_two_rows_and_no_two_columns_drop_the_same(device, small_tiles):
    """Tiles, quarters or steps with equal random words would repeat the mask."""
    ones, zeros = torch.ones(64, 1, 64, device=device), torch.zeros(64, 1, 64, device=device)
    kept = build(hidden=64, dropout=0.5)(ones, None, zeros)[:, 0] > 0
    assert len({tuple(row) for row in kept.tolist()}) == 64
    assert len({tuple(column) for column in kept.t().tolist()}) == 64
    assert len({tuple(tile.flatten().tolist()) for rows in kept.split(2) for tile in rows.split(16, dim=1)}) == 128


@pytest.mark.parametrize(("dropout", "training"), [(0.0, True), (0.3, False)])
def test_no_random_numbers_are_drawn_without_dropout(device, dropout, training):
    generator = torch if device.type == "cpu" else torch.cuda
    before = generator.get_rng_state()
    x = torch.zeros(3, 2, 48, device=device)
    build(dropout=dropout)(x, None, x, training=training)
    assert torch.equal(generator.get_rng_state(), before)


def test_only_the_seed_is_saved(device):
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()), lambda x: x):
        x, bias = torch.randn(5, 2, 48, device=device, requires_grad=True), torch.randn(48, device=device)
        build(dropout=0.1)(x, bias, x)
    assert saved == [1]


@pytest.mark.parametrize("dropout", [1e-12, 1 - 1e-12])
def test_a_dropout_near_0_or_1_drops_nothing_or_all(device, dropout):
    x = torch.ones(3, 2, 48, device=device)
    added = build(dropout=dropout)(x, None, torch.zeros_like(x))
    assert added.eq(round(1 - dropout)).all()


def test_no_rows_give_no_rows_and_zero_gradients(device):
    inputs = {"x": torch.zeros(0, 2, 48), "bias": torch.zeros(48), "residual": torch.zeros(0, 2, 48)}
    results = forward_backward(build(dropout=0.1), inputs, lambda x: x.to(device))
    assert results["output"].shape == (0, 2, 48)
    assert not results["gradient of bias"].any()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dropout": 1.0}, "dropout 1.0; only from 0 to below 1"),
        ({"dtype": torch.float64}, "dtype torch.float64; only float32, float16, bfloat16"),
    ],
)
def test_a_decline_names_the_unsupported_value(settings, reason):
    declined = bias_dropout_add.answers(examples.bias_dropout_add(**settings))
    assert isinstance(declined, Decline)
    assert declined.reason == reason
