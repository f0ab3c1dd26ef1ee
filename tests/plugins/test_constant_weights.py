"""What kernels make of weights is kept while the weights do not change, and never longer."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from engine import tiny
from pretrain.plugins.constant_weights import constant_weights, made_once
from pretrain.reference import quantization

FP8 = ("model.hidden_size=64", "model.ffn_hidden_size=64", "precision.fp8=rowwise", "precision.dtype=bf16")


@pytest.fixture
def weight():
    return torch.ones(2, 2)


def doubled(weight):
    return made_once(weight, "doubled", lambda: weight * 2)


def test_it_is_made_once_in_a_block(weight):
    with constant_weights(micro_batches=2):
        assert doubled(weight) is doubled(weight)
        assert made_once(weight, "halved", lambda: weight / 2)[0, 0] == 0.5
        assert doubled(torch.zeros(1)) == 0


def test_it_is_made_anew_after_the_block(weight):
    with constant_weights(micro_batches=2):
        before = doubled(weight)
    weight.add_(1)
    with constant_weights(micro_batches=2):
        assert torch.equal(doubled(weight), before + 2)


def test_it_is_made_anew_after_an_error_in_the_block(weight):
    with suppress(KeyError), constant_weights(micro_batches=2):
        doubled(weight)
        raise KeyError
    weight.add_(1)
    assert doubled(weight)[0, 0] == 4


@pytest.mark.parametrize("uses", [None, 1])
def test_nothing_is_kept_outside_of_a_block_and_for_one_use(weight, uses):
    if uses is None:
        assert doubled(weight) is not doubled(weight)
        return
    with constant_weights(micro_batches=uses):
        assert doubled(weight) is not doubled(weight)


def test_a_weight_that_zero_3_gathers_is_made_anew(weight):
    weight.ds_tensor = weight
    with constant_weights(micro_batches=2):
        assert doubled(weight) is not doubled(weight)


def test_a_step_rounds_a_weight_once_along_each_dimension_and_the_next_step_again(monkeypatch):
    rounded = []
    round_matrix = quantization.quantized

    def record(x, kind, dim, **options):
        rounded.append((x.data_ptr(), dim))
        return round_matrix(x, kind, dim, **options)

    monkeypatch.setattr(quantization, "quantized", record)
    with tiny.engine_of(tiny.tiny(*FP8, "train.micro_batch_size=2")) as engine:
        of_body = {
            weight.data_ptr()
            for name, weight in engine.models[0].named_parameters()
            if name.endswith(("qkv.weight", "proj.weight", "fc1.weight", "fc2.weight"))
        }
        assert len(of_body) == 4 * engine.recipe.model.num_layers
        for iteration in range(2):
            rounded.clear()
            tiny.take_step(engine, iteration)
            of_weights = [each for each in rounded if each[0] in of_body]
            assert sorted(of_weights) == sorted((address, dim) for address in of_body for dim in (0, 1))


def test_a_training_with_micro_batches_has_the_same_bits_without_it(monkeypatch):
    keys = (*FP8, "train.micro_batch_size=2")
    kept = tiny.curve(*keys)
    monkeypatch.setattr(quantization, "made_once", lambda _weight, _kind, make: make())
    assert tiny.curve(*keys) == kept
