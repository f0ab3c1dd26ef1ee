"""The GPT as megatron-core sees it: parameters, checkpoint names, marks for the gradients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from engine import tiny
from engine.layouts import LLAMA, NEOX, QWEN
from pretrain.model.layer import Norm, ParallelLayer, SerialLayer
from pretrain.model.weights import partial_gradients
from pretrain.report.flops import parameter_count


@pytest.fixture
def gpt():
    """Build a GPT; return the module inside megatron-core's wrappers."""
    stack = []

    def build(*overrides):
        context = tiny.engine_of(tiny.tiny(*overrides))
        engine = context.__enter__()
        stack.append(context)
        inner = engine.chunks[0].module
        return getattr(inner, "module", inner)

    yield build
    for context in reversed(stack):
        context.__exit__(None, None, None)


def test_the_embedding_norm_is_part_of_the_checkpoint(gpt):
    model = gpt("model.embedding_layernorm=true")
    names = {"embedding_layernorm.weight", "embedding_layernorm.bias"}
    assert names <= model.state_dict().keys()
    assert names <= model.sharded_state_dict().keys()


def test_without_the_embedding_norm_there_is_no_parameter(gpt):
    assert not any("embedding_layernorm" in name for name in gpt().state_dict())


@pytest.mark.parametrize(("model", "layer"), [((), SerialLayer), (NEOX, ParallelLayer)])
def test_the_residual_decides_the_layer(gpt, model, layer):
    assert {type(built) for built in gpt(*model).decoder.layers} == {layer}


@pytest.mark.parametrize("model", [(), NEOX, LLAMA, QWEN], ids=["GPT-2", "NeoX", "Llama", "Qwen"])
def test_it_has_as_many_parameters_as_are_reported(gpt, model):
    built = gpt(*model)
    padded = tiny.tiny(*model).padded_vocab_size(tiny.VOCAB_SIZE)
    assert sum(weight.numel() for weight in built.parameters()) == parameter_count(tiny.tiny(*model).model, padded)


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(torch.float32, marks=pytest.mark.full),
        torch.bfloat16,
        pytest.param(torch.float16, marks=pytest.mark.full),
    ],
)
def test_all_parameters_have_the_dtype_of_the_recipe(gpt, dtype):
    name = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    assert {parameter.dtype for parameter in gpt(f"precision.dtype={name}").parameters()} == {dtype}


def test_rotations_are_computed_once_for_a_length(gpt):
    rotations = gpt(*NEOX).rotary_pos_emb
    first = rotations(32)
    assert first.shape == (2, 32, 1, 1, 4)
    assert rotations(32) is first
    cos, sin = first.unbind(0)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos))
    assert torch.equal(cos[..., :2], cos[..., 2:])


@pytest.mark.parametrize(
    ("width", "sequence_parallel", "is_of_heads"),
    [(64, False, False), (64, True, False), (64, False, True), (16, False, True), (16, False, False)],
)
def test_a_norm_of_tokens_or_heads_that_ranks_share_has_partial_gradients(width, sequence_parallel, is_of_heads):
    """The width says nothing: heads may be as wide as the model, and a norm of all tokens narrower."""
    config = SimpleNamespace(hidden_size=64, normalization="LayerNorm", sequence_parallel=sequence_parallel)
    norm = Norm(config, width, kernel=print, is_of_heads=is_of_heads)
    assert len(partial_gradients(norm)) == (2 if sequence_parallel or is_of_heads else 0)
