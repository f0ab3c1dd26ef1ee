"""Megatron-LM's files of every version and layout are read as the model that they are of, and written again."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats import megatron, megatron_writer, sharded
from pretrain.tools.convert.model_weights import FileLayout
from pretrain.tools.convert.target import write_target
from tools.convert.formats import megatron_files
from tools.convert.formats.hugging_face_models import GROUPED, HEADS, logits_of, random_model, require_equal
from tools.convert.formats.megatron_files import NAMES_2019, NAMES_2022, NAMES_2024, arguments, detached, divided
from tools.convert.formats.own_models import our_logits, random_weights, written

LLAMA = {
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "num_query_groups": 2,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
}
GIVEN = {"num_attention_heads": HEADS}


@pytest.fixture(scope="module")
def gpt2():
    return random_model(megatron_files.GPT2_CONFIG)


@pytest.mark.parametrize(
    ("version", "names", "layout", "args"),
    [
        (0, NAMES_2019, {}, None),
        (0, NAMES_2019, {"ranks": 2}, None),
        (1.0, NAMES_2019, {"ranks": 2}, arguments(model_parallel_size=2)),
        (3.0, NAMES_2022, {"ranks": 2, "stages": 2}, arguments(tensor_model_parallel_size=2)),
        (3.0, NAMES_2024, {"stages": 2, "chunks": 2}, arguments()),
    ],
    ids=["2019", "2019 on 2 ranks", "version 1.0", "version 3.0", "virtual stages, names of 2024"],
)
def test_a_gpt2_of_every_version_has_the_logits_of_transformers(gpt2, tmp_path, version, names, layout, args):
    megatron_files.gpt2(gpt2, tmp_path / "release", version, names, **layout, args=args)
    weights = megatron.read(tmp_path / "release", {} if args else GIVEN)
    assert weights.iteration is None
    torch.testing.assert_close(our_logits(weights), logits_of(gpt2), rtol=0, atol=1e-5)


def llama_rank(model, rank, ranks):
    """Return one rank's weights of a Llama as megatron-core with Transformer Engine names and divides them."""
    held = {"embedding.word_embeddings.weight": divided(model.model.embed_tokens.weight, 0, rank, ranks)}
    for number, layer in enumerate(model.model.layers):
        prefix, attention = f"decoder.layers.{number}.", layer.self_attn
        groups = GROUPED["num_key_value_heads"]
        qkv = [getattr(attention, f"{name}_proj").weight.unflatten(0, (groups, -1)) for name in "qkv"]
        linear_qkv = torch.cat(qkv, 1).flatten(0, 1)
        gate, up = (divided(each.weight, 0, rank, ranks) for each in (layer.mlp.gate_proj, layer.mlp.up_proj))
        held |= {
            f"{prefix}self_attention.linear_qkv.layer_norm_weight": layer.input_layernorm.weight,
            f"{prefix}self_attention.linear_qkv._extra_state": torch.empty(0, dtype=torch.uint8),
            f"{prefix}self_attention.linear_qkv.weight": divided(linear_qkv, 0, rank, ranks),
            f"{prefix}self_attention.linear_proj.weight": divided(attention.o_proj.weight, 1, rank, ranks),
            f"{prefix}mlp.linear_fc1.layer_norm_weight": layer.post_attention_layernorm.weight,
            f"{prefix}mlp.linear_fc1.weight": torch.cat([gate, up]),
            f"{prefix}mlp.linear_fc2.weight": divided(layer.mlp.down_proj.weight, 1, rank, ranks),
        }
    held["decoder.final_layernorm.weight"] = model.model.norm.weight
    held["output_layer.weight"] = divided(model.lm_head.weight, 0, rank, ranks)
    return detached(held)


def test_a_llama_of_megatron_core_has_the_logits_of_transformers(tmp_path):
    llama = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-3, rope_theta=500.0))
    args = arguments(
        num_layers=2,
        group_query_attention=True, num_query_groups=2, swiglu=True, normalization="RMSNorm", norm_epsilon=1e-3,
        position_embedding_type="rope", rotary_base=500, untie_embeddings_and_output_weights=True, vocab_size=299,
        consumed_train_samples=240, num_experts=None, rotary_interleaved=False,
    )  # fmt: skip
    schedule = {"max_lr": 1e-3, "lr_warmup_steps": 10, "num_steps": 240, "lr_decay_style": "cosine"}
    for rank in range(2):
        state = {"args": args, "checkpoint_version": 3.0, "iteration": 30, "model": llama_rank(llama, rank, 2)}
        (tmp_path / f"mp_rank_0{rank}").mkdir()
        torch.save(state | {"opt_param_scheduler": schedule}, tmp_path / f"mp_rank_0{rank}" / "model_optim_rng.pt")
    weights = megatron.read(tmp_path, {})
    torch.testing.assert_close(our_logits(weights), logits_of(llama), rtol=0, atol=1e-5)
    assert (weights.vocab_size, weights.iteration, weights.consumed_samples) == (None, 30, 240)
    assert weights.schedule == schedule


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([{}, LLAMA, {"activation": "gelu_tanh", "untie_embeddings_and_output_weights": True}]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([None, 7]),
)
def test_what_is_written_is_read_again_bit_by_bit(tmp_path_factory, model, tensor, stages, iteration):
    weights = replace(random_weights(**model), iteration=iteration, schedule={"max_lr": 1e-3, "num_steps": 56})
    target = megatron_writer.write(weights, FileLayout(tensor=tensor, pipeline=stages))
    folder = written(target, tmp_path_factory.mktemp("target"))
    latest = (folder / "latest_checkpointed_iteration.txt").read_text()
    again = megatron.read(folder / (latest if iteration is None else f"iter_{int(latest):07d}"), {})
    require_equal(again.with_vocabulary(11).tensors, weights.tensors)
    assert again.model == weights.model
    assert (again.vocab_size, again.rows) == (11, 12)
    padded = again.tensors["embedding.word_embeddings.weight"].whole()
    assert torch.equal(padded[11:], padded[10:11])  # of no token, and as Megatron-LM's own tools pad
    same = ("iteration", "consumed_samples", "schedule")
    assert [getattr(again, name) for name in same] == [getattr(weights, name) for name in same]


def test_the_last_stage_has_a_copy_of_a_tied_embedding(tmp_path):
    folder = (
        written(megatron_writer.write(random_weights(), FileLayout(tensor=2, pipeline=2)), tmp_path) / "iter_0000007"
    )
    first, last = (
        torch.load(folder / f"mp_rank_01_00{stage}" / "model_optim_rng.pt", weights_only=False) for stage in range(2)
    )
    copy = last["model"]["output_layer.weight"]
    assert torch.equal(first["model"]["embedding.word_embeddings.weight"], copy)
    assert copy.shape == (6, 16)
    assert "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight" in last["model"]
    assert isinstance(first["args"], argparse.Namespace)
    assert (first["args"].tensor_model_parallel_size, first["args"].padded_vocab_size) == (2, 12)
    assert first["args"].tokenizer_type == "GPT2BPETokenizer"


def differing(state):
    state["model"]["word_embeddings_for_head"]["weight"][3] += 1


def test_a_copy_of_the_embedding_that_differs_is_no_tied_model(gpt2, tmp_path):
    layout = {"ranks": 2, "stages": 2}
    megatron_files.gpt2(gpt2, tmp_path, 3.0, NAMES_2022, **layout, args=arguments())
    changed(tmp_path, differing)
    untied = "untie_embeddings_and_output_weights"
    with pytest.raises(CheckpointError, match=f"word_embeddings_for_head.weight differs from .*\n.*{untied}=true"):
        megatron.read(tmp_path, {}).tensors["embedding.word_embeddings.weight"].whole()
    both = megatron.read(tmp_path, {untied: True}).tensors
    different = both["output_layer.weight"].whole() != both["embedding.word_embeddings.weight"].whole()
    assert different.any(1).nonzero().flatten().tolist() == [both["output_layer.weight"].shape[0] // 2 + 3]


def changed(folder, change):
    """Change what the last rank's file holds."""
    path = max(folder.glob("mp_rank_*")) / "model_optim_rng.pt"
    state = torch.load(path, weights_only=False)
    change(state)
    torch.save(state, path)


def nested_in_itself():
    part = {"weight": torch.ones(2)}
    for _ in range(18):
        part = {"a": part, "b": part}
    return part


def encoder(state):
    return state["model"]["language_model"]["encoder"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda state: encoder(state).pop("layers.1.mlp.dense_4h_to_h.bias"),
            "lacks .*layers.1.mlp.dense_4h_to_h.bias",
        ),
        (lambda state: encoder(state).update(pooler=torch.ones(2)), "lacks .*encoder.pooler"),
        (lambda state: encoder(state).update({"final_layernorm.weight": torch.ones(3)}), r"float32 \[3\]"),
        (lambda state: encoder(state).update({"final_layernorm.weight": torch.ones(64).half()}), r"float16 \[64\]"),
        (lambda state: encoder(state).update({"final_layernorm.weight": torch.ones(64).long()}), "floating-point"),
        (lambda state: state.pop("model"), "has no key `model`"),
        (lambda state: state.update(iteration=40), "iteration 40, and .* 30"),
        (lambda state: state.pop("checkpoint_version"), "checkpoint_version None, and .* 3.0"),
        (lambda state: state.update(model=nested_in_itself()), "twice"),
    ],
)
def test_ranks_that_do_not_belong_together_are_refused(gpt2, tmp_path, change, named):
    megatron_files.gpt2(gpt2, tmp_path, 3.0, NAMES_2022, ranks=2, args=arguments())
    changed(tmp_path, change)
    with pytest.raises(CheckpointError, match=named) as refused:
        megatron.read(tmp_path, {})
    assert len(str(refused.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda state: state.pop("args"), "does not contain num_attention_heads"),
        (lambda state: state.update(checkpoint_version=4.0), "checkpoint_version 4.0"),
        (lambda state: state.update(checkpoint_version=[3]), "checkpoint_version"),
        (lambda state: encoder(state).update(pooler=torch.ones(2)), "not of a GPT: language_model.encoder.pooler"),
        (lambda state: [encoder(state).pop(name) for name in list(encoder(state)) if "layers.0." in name], "layer 0"),
        (lambda state: encoder(state).pop("layers.1.input_layernorm.bias"), "no decoder.layers.1.input_layernorm.bias"),
        (lambda state: state["args"].__dict__.update(num_layers=5), "num_layers"),
        (lambda state: state["args"].__dict__.update(hidden_size="wide"), "hidden_size"),
        (lambda state: state["args"].__dict__.update(position_embedding_type=["rope"]), "position_embedding_type"),
        (
            lambda state: state["args"].__dict__.update(qk_l2_norm=True, squared_relu=True),
            "squared_relu True, qk_l2_norm True",
        ),
        (lambda state: state["args"].__dict__.update(num_experts=8), "experts .*\n.*--ckpt-format torch_dist"),
        (lambda state: state["args"].__dict__.update(apply_layernorm_1p=True), "apply_layernorm_1p"),
    ],
)
def test_models_that_are_not_ours_are_refused_by_name(gpt2, tmp_path, change, named):
    megatron_files.gpt2(gpt2, tmp_path, 3.0, NAMES_2022, args=arguments())
    changed(tmp_path, change)
    with pytest.raises(CheckpointError, match=named) as refused:
        megatron.read(tmp_path, {})
    assert not isinstance(refused.value, DamageError)
    assert len(str(refused.value).splitlines()) <= 3


def test_missing_ranks_are_named(gpt2, tmp_path):
    megatron_files.gpt2(gpt2, tmp_path, 3.0, NAMES_2022, ranks=2, stages=2, args=arguments())
    (tmp_path / "mp_rank_00_001" / "model_optim_rng.pt").unlink()
    with pytest.raises(CheckpointError, match="mp_rank_00_001"):
        megatron.read(tmp_path, {})


def test_a_folder_of_another_format_is_none(tmp_path):
    assert megatron.read(tmp_path, {}) is None


def test_biases_that_megatron_lms_gelu_tanh_needs_are_0(tmp_path):
    weights = random_weights(activation="gelu_tanh", add_bias_linear=False)
    folder = written(megatron_writer.write(weights, FileLayout(tensor=2)), tmp_path) / "iter_0000007"
    there = megatron.read(folder, {})
    assert there.model.add_bias_linear
    assert not there.tensors["decoder.layers.1.mlp.linear_fc1.bias"].whole().any()
    again = megatron.read(folder, {"add_bias_linear": False})
    require_equal(again.with_vocabulary(11).tensors, weights.tensors)


@pytest.mark.parametrize(
    ("model", "layout", "named"),
    [
        ({"parallel_residual": True}, {}, "parallel_residual"),
        (LLAMA | {"num_experts": 2}, {}, "experts .*\n.*Convert it to torch_dist"),
        ({"embedding_layernorm": True}, {}, "embedding_layernorm"),
        (
            {"position_embedding_type": "rope", "use_rope_scaling": True, "rope_low_freq_factor": 2.0},
            {},
            "rope_scaling",
        ),
        ({}, {"pipeline": 3}, "num_layers 4 in 3 stages"),
        (LLAMA, {"tensor": 4}, "num_query_groups 2 on 4 ranks"),
    ],
)
def test_models_and_layouts_that_megatron_lm_does_not_have_are_refused(model, layout, named):
    with pytest.raises(CheckpointError, match=named):
        megatron_writer.write(random_weights(**model), FileLayout(**layout))


EXPERTS = LLAMA | {"num_experts": 3, "moe_ffn_hidden_size": 5, "moe_shared_expert_intermediate_size": 7}


@pytest.mark.parametrize(
    ("model", "key", "state"),
    [
        ({}, "decoder.layers.mlp.experts.experts.linear_fc1", "shard_3.2_4.3"),
        ({"first_k_dense_replace": 1}, "decoder.layers.3.mlp.experts.experts.linear_fc1", "shard_2_3"),
    ],
    ids=["experts in all layers", "one dense layer"],
)
def test_a_mixture_in_the_sharded_format_has_megatron_lms_keys_and_is_read_again(tmp_path, model, key, state):
    bias = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
    weights = random_weights(**EXPERTS, **bias, **model)
    folder = tmp_path / "target"
    write_target(megatron_writer.write_torch_dist(weights, FileLayout()), folder, "identity")
    keys = sharded.index_of(folder / "iter_0000007").state_dict_metadata
    assert {f"{key}.weight", f"{key}._extra_state/{state}"} <= keys.keys()
    assert tuple(keys[f"{key}.weight"].size)[-3:] == (3, 10, 16)
    again = sharded.read(folder / "iter_0000007", {})
    require_equal(again.with_vocabulary(11).tensors, weights.tensors)
    assert again.model == weights.model
    described = sharded.describe(folder / "iter_0000007")
    assert (described.model["num_experts"], described.model["moe_ffn_hidden_size"]) == (3, 5)


def test_groups_that_megatron_core_rates_otherwise_are_refused():
    groups = {"moe_router_num_groups": 3, "moe_router_group_topk": 2, "moe_router_score_function": "sigmoid"}
    with pytest.raises(CheckpointError, match="moe_router_num_groups with a moe_router_topk that is not twice"):
        megatron_writer.write_torch_dist(random_weights(**EXPERTS, **groups), FileLayout())
