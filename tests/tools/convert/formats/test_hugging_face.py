"""Models that transformers has saved are read, and what is written it opens; the logits are the same."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
import transformers

from pretrain.tools.convert.formats import hugging_face
from pretrain.tools.convert.lazy_tensor import in_memory
from tools.convert.formats.hugging_face_models import (
    EXPERTS,
    GPT2,
    GROUPED,
    NO_DROPOUT,
    SHAPE,
    TOKENS,
    VOCAB,
    logits_of,
    random_model,
    require_equal,
    written,
)
from tools.convert.formats.own_models import our_logits, random_weights

LLAMA3 = {  # of 8 waves 1 stays, 1 is between, 6 are stretched
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 0.5,
    "high_freq_factor": 2.0,
    "original_max_position_embeddings": 16,
}
YARN = {  # of 8 waves 2 stay, 2 are between
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 2.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 2.0,
    "beta_slow": 0.5,
}
DEEPSEEK = {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}
MODELS = {
    "GPT-2": transformers.GPT2Config(**GPT2, **NO_DROPOUT),
    "GPT-2, untied": transformers.GPT2Config(
        **GPT2, **NO_DROPOUT, n_inner=96, activation_function="gelu", layer_norm_epsilon=1e-3, tie_word_embeddings=False
    ),
    "GPT-NeoX": transformers.GPTNeoXConfig(**SHAPE, hidden_act="gelu_fast", rotary_pct=0.25),
    "GPT-NeoX, serial": transformers.GPTNeoXConfig(
        **SHAPE, use_parallel_residual=False, rotary_pct=1.0, rotary_emb_base=500, layer_norm_eps=1e-3
    ),
    "Llama": transformers.LlamaConfig(**GROUPED, head_dim=24, rms_norm_eps=1e-3, rope_theta=500.0),
    "Llama 3.2": transformers.LlamaConfig(**GROUPED, tie_word_embeddings=True, rope_parameters=LLAMA3),
    "Llama, linear": transformers.LlamaConfig(**GROUPED, rope_parameters=dict(LINEAR)),
    "Llama, yarn": transformers.LlamaConfig(**GROUPED, rope_parameters=YARN | DEEPSEEK),
    "GPT-NeoX, yarn": transformers.GPTNeoXConfig(**SHAPE, rope_parameters=YARN | {"partial_rotary_factor": 0.5}),
    "Llama with biases": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "Mistral": transformers.MistralConfig(**GROUPED, sliding_window=7),
    "Mistral without a window": transformers.MistralConfig(**GROUPED, sliding_window=None),
    "Qwen 2": transformers.Qwen2Config(**GROUPED),
    "Qwen 2.5, yarn": transformers.Qwen2Config(**GROUPED, rope_parameters=dict(YARN)),
    "Qwen 3": transformers.Qwen3Config(**GROUPED, head_dim=24, rope_theta=500.0),
    "StableLM": transformers.StableLmConfig(**GROUPED, use_qkv_bias=True),
    "StableLM, linear": transformers.StableLmConfig(**GROUPED, rope_parameters=LINEAR | {"partial_rotary_factor": 0.5}),
    "StableLM, half of a head": transformers.StableLmConfig(**GROUPED, partial_rotary_factor=0.5, layer_norm_eps=1e-3),
    "Mixtral": transformers.MixtralConfig(**GROUPED, num_local_experts=4, rms_norm_eps=1e-3, sliding_window=7),
    "Qwen 3 with experts": transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4, norm_topk_prob=True),
    "Qwen 3, weights that do not sum to 1": transformers.Qwen3MoeConfig(**EXPERTS, num_experts=4),
    "GLM-4.5": transformers.Glm4MoeConfig(
        **EXPERTS,
        n_routed_experts=8,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        routed_scaling_factor=2.5,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "GLM-4.5, yarn": transformers.Glm4MoeConfig(
        **EXPERTS, n_routed_experts=4, rope_parameters=YARN | {"attention_factor": 1.25, "partial_rotary_factor": 0.5}
    ),
    "GLM-4.5, plain": transformers.Glm4MoeConfig(**EXPERTS, n_routed_experts=4, first_k_dense_replace=0),
    "dots.llm1": transformers.Dots1Config(
        **EXPERTS,
        n_routed_experts=8,
        n_shared_experts=2,
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    ),
}
FULL = {
    *("GPT-2, untied", "GPT-NeoX, serial", "Llama with biases", "Mistral without a window"),
    *("StableLM, half of a head", "GLM-4.5, plain", "GPT-NeoX, yarn", "Qwen 2.5, yarn"),
    *("StableLM, linear", "GLM-4.5, yarn"),
}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.full] * (name in FULL)) for name in MODELS]
)
def saved(request, tmp_path_factory):
    """A model of transformers with random weights, biases and norms too, and the folder that it is saved in."""
    model = random_model(MODELS[request.param])
    folder = tmp_path_factory.mktemp("saved")
    model.save_pretrained(folder)
    return model, folder


def test_our_model_has_the_logits_of_theirs(saved):
    model, folder = saved
    weights = hugging_face.read(folder, {})
    assert (weights.vocab_size, weights.rows, weights.format) == (VOCAB, VOCAB, "Hugging Face, safetensors")
    torch.testing.assert_close(our_logits(weights), logits_of(model), rtol=0, atol=1e-5)


def test_transformers_opens_without_a_word_what_is_written(saved, tmp_path, caplog):
    model, folder = saved
    weights = hugging_face.read(folder, {})
    target = written(weights, tmp_path / "written")
    again = hugging_face.read(target, {})
    require_equal(again.tensors, weights.tensors)
    assert again.model == weights.model
    transformers.utils.logging.enable_propagation()
    with caplog.at_level(logging.WARNING):
        opened, info = transformers.AutoModelForCausalLM.from_pretrained(target, output_loading_info=True)
    assert not caplog.records
    assert not any(info.values()), info
    assert isinstance(opened, type(model)) or weights.model.window_size is None  # a Mistral, which is then a Llama
    torch.testing.assert_close(logits_of(opened), logits_of(model), rtol=0, atol=1e-6)


@pytest.mark.parametrize("saved", ["Mixtral", "Qwen 3 with experts", "GLM-4.5"], indirect=True)
def test_files_with_the_experts_of_a_layer_in_one_tensor_are_read(saved, tmp_path):
    """transformers 5 holds them so, and writes them so where it is asked to."""
    model, folder = saved
    model.save_pretrained(tmp_path, save_original_format=False)
    require_equal(hugging_face.read(tmp_path, {}).tensors, hugging_face.read(folder, {}).tensors)


def test_a_dynamic_base_is_that_of_transformers_for_texts_of_the_recipes_length(tmp_path):
    """Theirs follows each text beyond max_position_embeddings; ours is that of seq_length, for shorter ones too."""
    rope = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
    model = random_model(transformers.LlamaConfig(**GROUPED | {"max_position_embeddings": 16}, rope_parameters=rope))
    model.save_pretrained(tmp_path / "saved")
    length = {"seq_length": len(TOKENS), "max_position_embeddings": 32}
    weights = hugging_face.read(tmp_path / "saved", length)
    assert weights.model.original_max_position_embeddings == 16
    torch.testing.assert_close(our_logits(weights), logits_of(model), rtol=0, atol=1e-5)
    target = written(weights, tmp_path / "written")
    assert hugging_face.read(target, length).model == weights.model
    opened = transformers.AutoModelForCausalLM.from_pretrained(target)
    torch.testing.assert_close(logits_of(opened), logits_of(model), rtol=0, atol=1e-6)


WITHOUT_BIASES = [
    {"position_embedding_type": "learned_absolute", "activation": "gelu_tanh"},
    {"position_embedding_type": "learned_absolute", "activation": "gelu", "add_qkv_bias": True},
    {"position_embedding_type": "rope", "rotary_percent": 0.5, "parallel_residual": True},
]


@pytest.mark.parametrize("settings", WITHOUT_BIASES, ids=["GPT-2", "GPT-2 with biases of queries", "GPT-NeoX"])
def test_biases_that_an_architecture_always_has_are_0_and_the_logits_equal(tmp_path, settings):
    without = settings | {"add_bias_linear": False, "seq_length": len(TOKENS), "hidden_size": 64}
    random = random_weights(VOCAB, **without)
    small = {name: in_memory(each.whole().float() / 8) for name, each in random.tensors.items()}
    weights = replace(random, tensors=small)
    folder = written(weights, tmp_path)
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info
    torch.testing.assert_close(logits_of(theirs), our_logits(weights), rtol=0, atol=1e-5)
    without |= {"add_qkv_bias": settings.get("add_qkv_bias", False)}
    require_equal(hugging_face.read(folder, without).tensors, weights.tensors)
    assert hugging_face.read(folder, {}).model.add_bias_linear
