"""Consequences that keys of the section `model` declare, compared with the model that is built and what is counted."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from pretrain.checkpoint.identity import structure
from pretrain.engine.build import engine_parts
from pretrain.engine.megatron.forward_pass import ForwardOnlyEngine
from pretrain.plugins.host.manager import load
from pretrain.recipe.sections.model import CONSEQUENCES, SIZE
from pretrain.report.flops import flops_per_sequence, parameter_count

ROPE = ("model.position_embedding_type=rope",)
SCALED = (*ROPE, "model.use_rope_scaling=true", "model.original_max_position_embeddings=16")
YARN = (*SCALED[:2], "model.rope_scaling_type=yarn", "model.original_max_position_embeddings=1024")
EXPERTS = ("model.num_experts=4", "model.add_bias_linear=false", "model.ffn_hidden_size=96")
SIGMOID = (*EXPERTS, "model.moe_router_score_function=sigmoid")
GROUPS = (*EXPERTS, "model.moe_router_num_groups=2", "model.moe_router_group_topk=2")
BALANCED = (*EXPERTS, "model.moe_router_load_balancing_type=aux_loss")
OTHER = {
    "num_layers": ("2", ()),
    "hidden_size": ("128", ("model.kv_channels=16", "model.ffn_hidden_size=96")),
    "num_attention_heads": ("8", ("model.kv_channels=16",)),
    "seq_length": ("16", ("model.max_position_embeddings=32",)),
    "activation": ("swiglu", ("model.ffn_hidden_size=96",)),
    "ffn_hidden_size": ("96", ()),
    "num_query_groups": ("2", ()),
    "kv_channels": ("32", ()),
    "max_position_embeddings": ("64", ()),
    "position_embedding_type": ("rope", ()),
    "rotary_percent": ("0.5", ROPE),
    "rotary_base": ("500", ROPE),
    "use_rope_scaling": ("true", ROPE),
    "rope_scaling_type": ("yarn", SCALED),
    "rope_scaling_factor": ("32", SCALED),
    "rope_low_freq_factor": ("2", SCALED),
    "rope_high_freq_factor": ("3", SCALED),
    "original_max_position_embeddings": ("8", SCALED),
    "yarn_beta_fast": ("64", YARN),
    "yarn_beta_slow": ("0.1", YARN),
    "yarn_attention_factor": ("1.5", YARN),
    "yarn_correction_range_round_to_int": ("false", YARN),
    "normalization": ("RMSNorm", ()),
    "layernorm_epsilon": ("0.1", ()),
    "add_bias_linear": ("false", ()),
    "add_qkv_bias": ("true", ("model.add_bias_linear=false",)),
    "qk_layernorm": ("true", ()),
    "window_size": ("5", ()),
    "num_experts": ("4", ("model.add_bias_linear=false",)),
    "moe_ffn_hidden_size": ("64", EXPERTS),
    "first_k_dense_replace": ("1", EXPERTS),
    "moe_layer_freq": ("2", EXPERTS),
    "moe_shared_expert_intermediate_size": ("64", EXPERTS),
    "moe_router_topk": ("3", EXPERTS),
    "moe_router_score_function": ("sigmoid", EXPERTS),
    "moe_router_pre_softmax": ("true", EXPERTS),
    "moe_router_num_groups": ("4", (*EXPERTS[1:], "model.num_experts=8", *GROUPS[3:])),
    "moe_router_group_topk": ("1", GROUPS),
    "moe_router_topk_scaling_factor": ("2.5", EXPERTS),
    "moe_router_enable_expert_bias": ("true", SIGMOID),
    "moe_router_bias_update_rate": ("0.5", (*SIGMOID, "model.moe_router_enable_expert_bias=true")),
    "moe_expert_capacity_factor": ("0.25", EXPERTS),
    "moe_token_drop_policy": ("position", (*EXPERTS, "model.moe_expert_capacity_factor=0.25")),
    "moe_router_load_balancing_type": ("aux_loss", EXPERTS),
    "moe_aux_loss_coeff": ("0.5", BALANCED),
    "moe_z_loss_coeff": ("0.5", EXPERTS),
    "untie_embeddings_and_output_weights": ("true", ()),
    "parallel_residual": ("true", ()),
    "embedding_layernorm": ("true", ()),
    "hidden_dropout": ("0.5", ()),
    "attention_dropout": ("0.5", ()),
    "init_method": ("small_init", ()),
    "init_method_std": ("0.5", ()),
    "output_layer_init_method": ("wang_init", ()),
    "apply_query_key_layer_scaling": ("true", ()),
    "attention_softmax_in_fp32": ("false", ()),
    "make_vocab_size_divisible_by": ("64", ()),
}
"""Key -> a value that is not the tiny model's, and what makes it the only difference."""

ROWS = tiny.tiny().padded_vocab_size(tiny.VOCAB_SIZE)


def test_every_key_is_compared():
    assert list(OTHER) == list(CONSEQUENCES)


@pytest.fixture(scope="module")
def built():
    """Return the shapes of a recipe's model, its logits for one set of weights, and what is counted."""
    known, plugins = {}, load("cpu")

    def build(*overrides):
        if overrides not in known:
            recipe, generator = tiny.tiny(*overrides), torch.Generator().manual_seed(0)
            counted = parameter_count(recipe.model, ROWS), flops_per_sequence(recipe.model, ROWS)
            with tiny.engine_world(plugins.backend):
                parts = engine_parts(recipe, plugins, tiny.VOCAB_SIZE, torch.device("cpu"), print)
                engine = ForwardOnlyEngine(parts)
                named = (*engine.models[0].named_parameters(), *engine.models[0].named_buffers())
                shapes = {name: tuple(weight.shape) for name, weight in named if not name.endswith("inv_freq")}
                for weight in engine.models[0].parameters():
                    weight.data = torch.randn(weight.shape, generator=generator) / 4
                known[overrides] = recipe, shapes, engine.next_token_logits(tuple(range(7, 23)))[:256], counted
        return known[overrides]

    return build


@pytest.mark.parametrize("key", CONSEQUENCES)
def test_a_key_does_what_it_declares(built, key):
    value, others = OTHER[key]
    before, shapes, logits, (parameters, flops) = built(*others)
    after, other_shapes, other_logits, (other_parameters, other_flops) = built(*others, f"model.{key}={value}")
    declared = CONSEQUENCES[key]
    if key != "make_vocab_size_divisible_by":  # rows without a token, which checkpoints leave out
        assert (shapes != other_shapes) == declared.shapes_weights
        counted = sum(elements(shape) for name, shape in other_shapes.items() if not name.endswith("expert_bias"))
        assert counted == other_parameters, "parameter_count is not the model's"
    if shapes == other_shapes:
        assert torch.allclose(logits, other_logits, rtol=0, atol=1e-5) != declared.changes_function
    assert (parameters != other_parameters) == declared.parameters
    assert (flops != other_flops) == declared.flops
    assert (structure(before.model) != structure(after.model)) == declared.is_structure


def elements(shape):
    return torch.Size(shape).numel()


def test_a_key_that_declares_nothing_is_an_error(monkeypatch):
    from pretrain.recipe.sections import model

    class Silent(model.ModelSection):
        v_layernorm: bool = False

    monkeypatch.setattr(model, "ModelSection", Silent)
    with pytest.raises(TypeError, match=r"^model\.v_layernorm: declare the key as Annotated\[\.\.\., Consequences"):
        model._consequences()
    assert SIZE.is_structure
