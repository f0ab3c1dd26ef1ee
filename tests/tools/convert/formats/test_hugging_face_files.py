"""Files of the hub in all their kinds; what no model here can be, and broken files, are refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats import hugging_face
from pretrain.tools.convert.formats.hugging_face_config import settings_of_config
from pretrain.tools.convert.lazy_tensor import in_memory
from tools.convert.formats.hugging_face_models import (
    EXPERTS,
    GPT2,
    GROUPED,
    HIDDEN,
    POSITIONS,
    SHAPE,
    VOCAB,
    random_model,
    require_equal,
)

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "factor": 4.0}
CONFIGS = {
    "gpt2": transformers.GPT2Config(**GPT2),
    "gpt_neox": transformers.GPTNeoXConfig(**SHAPE),
    "llama": transformers.LlamaConfig(**GROUPED),
    "mistral": transformers.MistralConfig(**GROUPED, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**GROUPED),
    "qwen3": transformers.Qwen3Config(**GROUPED),
    "stablelm": transformers.StableLmConfig(**GROUPED),
    "mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4),
    "qwen3_moe": transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4),
    "glm4_moe": transformers.Glm4MoeConfig(**EXPERTS, n_routed_experts=4),
    "dots1": transformers.Dots1Config(**EXPERTS, n_routed_experts=4, n_shared_experts=1, norm_topk_prob=True),
}


@pytest.fixture(scope="module")
def states():
    """The weights of a model of each kind by transformers' names; a tied output layer is there, too."""
    return {kind: random_model(config).state_dict() for kind, config in CONFIGS.items()}


@pytest.fixture
def folder(tmp_path, states):
    """Return a function that saves a model with changes in its config and its weights; None leaves a value out."""

    def save(kind, changes=None, weights=None):
        config = json.loads(CONFIGS[kind].to_json_string(use_diff=False)) | (changes or {})
        left_out = [name for name, value in (changes or {}).items() if value is ...]
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in left_out}))
        state = {name: weight.clone() for name, weight in states[kind].items()} | (weights or {})
        if kind == "gpt2" and "lm_head.weight" not in (weights or {}):
            del state["lm_head.weight"]
        save_file(
            {name: weight for name, weight in state.items() if weight is not None}, tmp_path / "model.safetensors"
        )
        return tmp_path

    return save


def tensors_in_memory(folder):
    return {name: in_memory(tensor.whole()) for name, tensor in hugging_face.read(folder, {}).tensors.items()}


def refused(folder):
    """Return the error's text, which is two or three lines."""
    with pytest.raises(CheckpointError) as raised:
        tensors_in_memory(folder)
    assert 2 <= len(str(raised.value).splitlines()) <= 3
    return str(raised.value)


def test_a_folder_of_another_format_is_left_to_others(tmp_path):
    assert hugging_face.read(tmp_path, {}) is None
    (tmp_path / "config.json").write_text("{}")
    assert hugging_face.read(tmp_path, {}) is None


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "llama"])
def test_a_torch_file_as_transformers_wrote_it_before_2023(folder, states, tmp_path, kind):
    """It has masks, frequencies, both names of a tied embedding; the hub's GPT-2 has names without their beginning."""
    expected = tensors_in_memory(folder(kind))
    state = {name.removeprefix("transformer."): weight for name, weight in states[kind].items()}
    attention = {"gpt2": "h.0.attn", "gpt_neox": "gpt_neox.layers.0.attention", "llama": "model.layers.0.self_attn"}
    state[f"{attention[kind]}.rotary_emb.inv_freq"] = torch.ones(8)
    if kind != "llama":
        mask = torch.ones(1, 1, POSITIONS, POSITIONS, dtype=torch.uint8).tril()
        state |= {f"{attention[kind]}.bias": mask, f"{attention[kind]}.masked_bias": torch.tensor(-1e4)}
    (tmp_path / "model.safetensors").unlink()
    torch.save(state, tmp_path / "pytorch_model.bin")
    weights = hugging_face.read(tmp_path, {})
    assert weights.format == "Hugging Face, torch files"
    require_equal(weights.tensors, expected)


@pytest.mark.parametrize("is_safe", [True, False], ids=["safetensors", "torch"])
def test_shards(folder, tmp_path, states, is_safe):
    expected = tensors_in_memory(folder("llama"))
    (tmp_path / "model.safetensors").unlink()
    names = list(states["llama"])
    stem, save = ("model.safetensors", save_file) if is_safe else ("pytorch_model.bin", torch.save)
    shards = {"first" + Path(stem).suffix: names[:5], "second" + Path(stem).suffix: names[5:]}
    for shard, inside in shards.items():
        save({name: states["llama"][name] for name in inside}, tmp_path / shard)
    index = {name: shard for shard, inside in shards.items() for name in inside}
    (tmp_path / f"{stem}.index.json").write_text(json.dumps({"weight_map": index}))
    require_equal(hugging_face.read(tmp_path, {}).tensors, expected)
    save({name: states["llama"][name] for name in names[6:]}, tmp_path / list(shards)[1])
    assert f"are missing in its files: {names[5]}" in refused(tmp_path)
    save({name: states["llama"][name] for name in names[4:]}, tmp_path / list(shards)[1])
    assert f"'{names[4]}', and another shard does too" in refused(tmp_path)


ROPE5 = {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}
SAME = {
    "gpt_neox": (
        {"rotary_pct": 0.5, "rotary_emb_base": 500, "rope_parameters": ...},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500, "partial_rotary_factor": 0.5}},
    ),
    "gpt_neox by default": ({"rope_parameters": ...}, {"rotary_pct": 0.25, "rotary_emb_base": 10000}),
    "llama": (
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}, "rope_parameters": ...},
        {"rope_parameters": ROPE5},
    ),
    "llama by default": ({"rms_norm_eps": ..., "hidden_act": ..., "tie_word_embeddings": ...}, {"rms_norm_eps": 1e-6}),
    "qwen2": ({"rope_theta": 1e6, "rope_parameters": ...}, {"rope_parameters": {"rope_theta": 1e6, "type": "default"}}),
    "mistral": ({"rope_theta": 1e6, "rope_parameters": ...}, {"rope_parameters": {"rope_theta": 1e6}}),
    "gpt2 by default": ({"n_inner": ..., "activation_function": ..., "tie_word_embeddings": ...}, {}),
}


@pytest.mark.parametrize("name", SAME)
def test_configs_of_transformers_4_and_5_describe_one_model(folder, name):
    old, new = SAME[name]
    first = hugging_face.read(folder(name.split()[0], old), {}).model
    assert first == hugging_face.read(folder(name.split()[0], new), {}).model
    if name == "llama":
        assert (first.rotary_base, first.use_rope_scaling, first.original_max_position_embeddings) == (5e5, True, 16)


@pytest.mark.parametrize(
    ("kind", "rope", "expected"),
    [
        ("linear", {"factor": 4}, {"rope_scaling_factor": 4.0}),
        ("dynamic", {"factor": 2.0, "original_max_position_embeddings": 7}, {"rope_scaling_factor": 2.0}),
        ("yarn", {"factor": 4.0}, {"rope_scaling_factor": 4.0, "yarn_beta_fast": 32.0, "yarn_attention_factor": None}),
        (
            "yarn",
            {"factor": 40, "beta_fast": 16, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 1.0, "truncate": False},
            {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0, "yarn_attention_factor": 1.0}
            | {"yarn_correction_range_round_to_int": False},
        ),
        (
            "yarn",
            {"factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0, "beta_fast": None},
            {"yarn_attention_factor": None},
        ),
        ("yarn", {"factor": 4.0, "truncate": None}, {"yarn_correction_range_round_to_int": False}),
        (
            "yarn",
            {"factor": 4.0, "attention_factor": 1.5, "mscale": 1, "mscale_all_dim": 1},
            {"yarn_attention_factor": 1.5},
        ),
    ],
)
@pytest.mark.parametrize("name", ["type", "rope_type"])
def test_types_of_rope(folder, kind, rope, expected, name):
    """Positions that the config has are those before the scaling, where its section does not say it."""
    model = hugging_face.read(folder("qwen2", {"rope_scaling": {name: kind, **rope}, "rope_parameters": ...}), {}).model
    assert (model.use_rope_scaling, model.rope_scaling_type) == (True, kind)
    assert {key: getattr(model, key) for key in expected} == expected
    if kind != "linear":
        assert model.original_max_position_embeddings == POSITIONS


def test_a_config_of_pythia():
    """EleutherAI/pythia-6.9b on the hub, of transformers 4.22: use_parallel_residual and more are transformers' own."""
    config = {
        "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 4096, "intermediate_size": 16384,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
        "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "vocab_size": 50432,
    }  # fmt: skip
    assert settings_of_config(config) == {
        "position_embedding_type": "rope", "normalization": "LayerNorm", "activation": "gelu", "hidden_size": 4096,
        "ffn_hidden_size": 16384, "layernorm_epsilon": 1e-05, "max_position_embeddings": 2048, "num_layers": 32,
        "num_attention_heads": 32, "rotary_base": 10000, "rotary_percent": 0.25, "parallel_residual": True,
        "untie_embeddings_and_output_weights": True, "padded_vocab_size": 50432,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes", "named"),
    [
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
        ("gpt2", {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn True"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights False"),
        ("gpt2", {"activation_function": "relu"}, "activation_function 'relu'"),
        ("gpt_neox", {"hidden_act": "silu"}, "hidden_act 'silu'"),
        ("gpt_neox", {"attention_bias": False}, "attention_bias False"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("llama", {"hidden_act": ["silu"]}, "hidden_act"),
        ("llama", {"attention_bias": True}, "attention_bias True with mlp_bias False"),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_type 'longrope'"),
        ("llama", {"rope_scaling": {"type": "linear"}}, "linear without factor (model.rope_scaling_factor)"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 0.5}}, "rope_scaling_factor 0.5"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": None}}, "without factor"),
        ("llama", {"rope_scaling": YARN | {"mscale": "1", "mscale_all_dim": 1}}, "(model.yarn_attention_factor)"),
        ("llama", {"rope_scaling": {"rope_type": ["yarn"]}}, "rope_type ['yarn']"),
        ("llama", {"rope_scaling": "yarn"}, "rope_scaling 'yarn'"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ between layers"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor"),
        ("llama", {"rope_theta": 1.0}, "rope_theta 10000.0 and 1.0"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "model.rotary_percent=0.5"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama", {"num_hidden_layers": 10**12}, "1000000000000 layers"),
        ("llama", {"num_hidden_layers": "two"}, "num_layers 'two'"),
        ("llama", {"num_attention_heads": 0}, "num_attention_heads 0"),
        ("llama", {"num_key_value_heads": 3}, "model.layers.0.self_attn.q_proj.weight"),
        ("llama", {"hidden_size": ...}, "does not contain hidden_size"),
        ("llama", {"tie_word_embeddings": "no"}, "untie_embeddings_and_output_weights 'no'"),
        ("llama", {"vocab_size": 299}, "vocab_size 299"),
        ("llama", {"vocab_size": [1]}, "vocab_size [1]"),
        ("mistral", {"sliding_window": 0}, "window_size 0"),
        ("mistral", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "model.rotary_percent=0.5"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm True"),
        ("stablelm", {"use_parallel_residual": True}, "model.parallel_residual=true"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "layer_types": None},
         "sliding_window 16"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "sliding_window"),
        ("qwen3", {"attention_bias": True}, "attention_bias True"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1, "layer_types": None},
         "sliding_window 16"),
        ("mixtral", {"num_local_experts": 10**12}, "1000000000000 experts"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step 2"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window True"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "mlp_only_layers [1]"),
        ("glm4_moe", {"norm_topk_prob": False}, "norm_topk_prob False with num_experts_per_tok 2"),
        ("glm4_moe", {"n_shared_experts": 0}, "model.moe_shared_expert_intermediate_size"),
        ("dots1", {"norm_topk_prob": ...}, "norm_topk_prob False with num_experts_per_tok 2"),
        ("dots1", {"num_experts_per_tok": None}, "norm_topk_prob True with num_experts_per_tok None"),
        ("dots1", {"n_shared_experts": None}, "model.moe_shared_expert_intermediate_size"),
        ("dots1", {"attention_bias": True}, "attention_bias True"),
        ("dots1", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("dots1", {"sliding_window": 16, "max_window_layers": 1, "layer_types": None}, "sliding_window 16"),
        ("dots1", {"sliding_window": 16, "layer_types": ["full_attention", "sliding_attention"]}, "sliding_window 16"),
        ("qwen2", {"model_type": "deepseek_v3"}, "latent attention"),
        ("qwen2", {"model_type": "qwen4"}, "model_type 'qwen4'"),
        ("qwen2", {"model_type": {}}, "model_type {}"),
    ],
)  # fmt: skip
def test_a_config_that_no_model_here_fits_is_refused_by_name(folder, kind, changes, named):
    text = refused(folder(kind, changes))
    assert named in text
    if "no model here can be" in text:  # else the model itself is at fault
        assert ("--set" in text) == ("(model." in text)


@pytest.mark.parametrize(
    ("kind", "changes", "given"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2, "layer_types": None}, {}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0}, {}),
        ("dots1", {"sliding_window": 16, "max_window_layers": ..., "layer_types": ...}, {}),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, {"use_rope_scaling": False, "rope_scaling_type": "llama3"}),
        ("llama", {"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, {"use_rope_scaling": False}),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, {"rope_scaling_factor": 3.0}),
        ("gpt2", {"activation_function": "mine"}, {"activation": "gelu"}),
    ],
)
def test_what_has_no_effect_or_is_given_is_read(folder, kind, changes, given):
    model = hugging_face.read(folder(kind, changes), given).model
    assert {name: getattr(model, name) for name in given} == given


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({Q: None}, f"no {Q} [64, 64]"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}, "unexpected model.layers.0.self_attn.q_proj.bias"),
        ({"model.layers.2.mlp.up_proj.weight": torch.zeros(96, 64)}, "unexpected model.layers.2.mlp.up_proj.weight"),
        ({Q: torch.zeros(64, 64, dtype=torch.bfloat16)}, f"{Q} is bfloat16, model.layers.0.self_attn.k_proj"),
        ({Q: torch.zeros(64, 64, dtype=torch.int64)}, "quantized weights"),
        ({Q: torch.zeros(32, 64), Q.replace("q_proj", "k_proj"): torch.zeros(64, 64)}, f"{Q} [32, 64] (expected"),
        ({"model.embed_tokens.weight": None}, "holds no model.embed_tokens.weight"),
        ({"embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)}, "unexpected embed_tokens.weight"),
        ({"model.norm.weight": torch.tensor(1.0)}, "model.norm.weight"),
    ],
)
def test_weights_that_are_not_those_of_the_model_are_named(folder, weights, named):
    assert named in refused(folder("llama", weights=weights))


def test_two_names_of_one_weight_are_refused(folder, states):
    head = (
        states["gpt_neox"]["lm_head.weight"] if "lm_head.weight" in states["gpt_neox"] else torch.zeros(VOCAB, HIDDEN)
    )
    both = {"lm_head.weight": head.clone(), "embed_out.weight": head.clone()}
    assert "holds embed_out.weight under two names" in refused(folder("gpt_neox", weights=both))


def test_a_tied_output_layer_that_differs_is_not_lost(folder, states):
    """transformers 4 drops it, and 5 does not tie the two."""
    other = states["gpt2"]["lm_head.weight"].clone()
    other[7, 3] += 1e-6
    different = folder("gpt2", weights={"lm_head.weight": other})
    assert "lm_head.weight differs from transformer.wte.weight" in refused(different)
    untied = hugging_face.read(different, {"untie_embeddings_and_output_weights": True})
    assert torch.equal(untied.tensors["output_layer.weight"].whole(), other)


def test_a_link_leads_into_the_folder_or_to_the_blobs_of_the_hubs_cache(folder, tmp_path):
    """As huggingface_hub's snapshots are; a link to any other file would copy it into what is shared."""
    folder("llama")
    snapshot = tmp_path / "models--x" / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--x" / "blobs").mkdir()
    for number, name in enumerate(("config.json", "model.safetensors")):
        (tmp_path / name).rename(tmp_path / "models--x" / "blobs" / str(number))
        (snapshot / name).symlink_to(f"../../blobs/{number}")
    (snapshot / "tokenizer.json").write_text("{}")
    (snapshot / "vocab.json").symlink_to("tokenizer.json")
    assert len(hugging_face.read(snapshot, {}).tokenizer) == 2
    (tmp_path / "secret").write_text("secret")
    (snapshot / "chat_template.jinja").symlink_to(tmp_path / "secret")
    assert "chat_template.jinja is a link to" in refused(snapshot)
    (snapshot / "chat_template.jinja").unlink()
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to(tmp_path / "secret")
    assert "model.safetensors is a link to" in refused(snapshot)


@pytest.mark.parametrize("content", [[1], {"weight": 3}, {3: torch.zeros(2)}, {"model": {"a": torch.zeros(2)}}])
def test_a_torch_file_that_is_no_state_dict_is_refused(folder, tmp_path, content):
    folder("llama")
    (tmp_path / "model.safetensors").unlink()
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert "pytorch_model.bin " in refused(tmp_path)


def test_the_layer_that_predicts_the_token_after_the_next_is_left_out(folder, states):
    """GLM-4.5's files have it behind the last layer, and transformers leaves it out too."""
    of_last = {name: weight for name, weight in states["glm4_moe"].items() if ".layers.1." in name}
    more = {name.replace(".layers.1.", ".layers.2."): weight.clone() for name, weight in of_last.items()}
    expected = tensors_in_memory(folder("glm4_moe"))
    more["model.layers.2.eh_proj.weight"] = torch.ones(HIDDEN, 2 * HIDDEN)
    require_equal(hugging_face.read(folder("glm4_moe", weights=more), {}).tensors, expected)
    assert "unexpected model.layers.2" in refused(folder("glm4_moe", {"num_nextn_predict_layers": 0}, more))
