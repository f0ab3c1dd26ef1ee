"""Starting weights are the same numbers at every layout, with the deviation that the recipe asks for."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.tiny import tiny
from model.stages import Stage, put_together
from pretrain.model.weights import initialize, standard_deviation

VOCAB = 1300  # more rows of 64 than one block of random numbers has


def weights(recipe, *, tensor=1, cuts=()):
    """Return all parameters by global name, put together from tensor-parallel ranks and stages cut at these layers."""
    borders = [0, *cuts, recipe.model.num_layers]
    parts = defaultdict(list)
    for first, last in pairwise(borders):
        for rank in range(tensor):
            stage = Stage(recipe, VOCAB, tensor=tensor, first=first, last=last)
            initialize(stage, recipe, VOCAB, rank)
            for name, value in stage.named_parameters():
                parts[_global(name, first)].append(value)
    return {name: put_together(values) for name, values in parts.items()}


def _global(name, first):
    """Count layers over all stages."""
    words = name.split(".")
    if words[1] == "layers":
        words[2] = str(int(words[2]) + first)
    return ".".join(words)


@settings(max_examples=20)
@given(
    tensor=st.sampled_from([1, 2, 4]),
    cuts=st.sets(st.integers(1, 3)).map(sorted),
    activation=st.sampled_from(["gelu", "swiglu"]),
    seed=st.integers(0, 2**31),
)
def test_they_do_not_depend_on_the_layout(tensor, cuts, activation, seed):
    recipe = tiny(f"model.activation={activation}", "model.ffn_hidden_size=128", f"train.seed={seed}")
    whole, laid_out = weights(recipe), weights(recipe, tensor=tensor, cuts=cuts)
    assert whole.keys() == laid_out.keys()
    for name, value in whole.items():
        rows = VOCAB if "embeddings.weight" in name or name == "output_layer.weight" else len(value)
        assert torch.equal(laid_out[name][:rows], value[:rows]), name


@pytest.fixture(scope="module")
def whole():
    return weights(tiny("model.num_layers=8"))


def test_every_parameter_is_set(whole):
    assert all(value.isfinite().all() for value in whole.values())


def test_biases_are_zero_and_norms_one(whole):
    assert not any(value.any() for name, value in whole.items() if name.endswith("bias"))
    assert all((value == 1).all() for name, value in whole.items() if name.endswith("layernorm.weight"))


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_rows_of_the_padding_are_zero(tensor):
    table = weights(tiny(), tensor=tensor)["embedding.word_embeddings.weight"]
    assert len(table) > VOCAB
    assert table[:VOCAB].all()
    assert not table[VOCAB:].any()


def test_the_tied_output_of_the_last_stage_is_the_embedding_of_the_first(whole):
    assert torch.equal(whole["output_layer.weight"], whole["embedding.word_embeddings.weight"])


def test_an_output_of_its_own_is_drawn_on_its_own():
    untied = weights(tiny("model.untie_embeddings_and_output_weights=true"))
    assert not torch.equal(untied["output_layer.weight"], untied["embedding.word_embeddings.weight"])


def test_gate_and_up_projection_differ():
    gate, up = weights(tiny("model.activation=swiglu"))["decoder.layers.0.mlp.linear_fc1.weight"].chunk(2)
    assert not torch.equal(gate, up)


def test_no_two_matrices_and_no_two_seeds_are_alike(whole):
    def start(value):
        return tuple(value.flatten()[:3].tolist())

    drawn = {name: value for name, value in whole.items() if value.dim() == 2 and name != "output_layer.weight"}
    assert len({start(value) for value in drawn.values()}) == len(drawn)
    other = weights(tiny("train.seed=2"))
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    assert start(other[name]) != start(whole[name])


METHODS = {
    "normal": 0.05,
    "scaled_normal": 0.05 / math.sqrt(2 * 4),
    "small_init": math.sqrt(2 / (5 * 64)),
    "wang_init": 2 / (4 * math.sqrt(64)),
}


@pytest.mark.parametrize("method", METHODS)
def test_deviations_of_the_methods(method):
    recipe = tiny("model.init_method_std=0.05")
    assert standard_deviation(recipe, method) == pytest.approx(METHODS[method])


@pytest.mark.parametrize(("inner", "output"), [("normal", "scaled_normal"), ("small_init", "wang_init")])
def test_last_layers_of_the_branches_have_their_own_deviation(inner, output):
    recipe = tiny(
        f"model.init_method={inner}",
        f"model.output_layer_init_method={output}",
        *(["model.init_method_std=0.05"] if inner == "normal" else []),
    )
    drawn = weights(recipe)
    for name, method in {
        "embedding.word_embeddings.weight": inner,
        "decoder.layers.1.self_attention.linear_qkv.weight": inner,
        "decoder.layers.1.mlp.linear_fc1.weight": inner,
        "decoder.layers.1.self_attention.linear_proj.weight": output,
        "decoder.layers.1.mlp.linear_fc2.weight": output,
    }.items():
        values = drawn[name][:VOCAB]
        error = 5 / math.sqrt(2 * values.numel())  # five standard errors of a sample's deviation
        assert values.std().item() == pytest.approx(METHODS[method], rel=error)
        assert abs(values.mean().item()) < 5 * METHODS[method] / math.sqrt(values.numel())


def test_an_unknown_method_is_an_error():
    with pytest.raises(ValueError, match="'xavier' is unknown"):
        standard_deviation(tiny(), "xavier")
