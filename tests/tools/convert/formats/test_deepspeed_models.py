"""Models of Megatron-DeepSpeed: the logits are those of transformers; others are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats import deepspeed
from pretrain.tools.convert.formats.deepspeed_weights import our_names
from tools.convert.formats.hugging_face_models import GPT2, GROUPED, NO_DROPOUT, logits_of, random_model, require_equal
from tools.convert.formats.megatron_deepspeed import FPDT, OF_GPT2, OF_LLAMA, rank_of_gpt2, rank_of_llama, save
from tools.convert.formats.own_models import our_logits

GPT2_CASES = {
    "2 ranks": (2, "heads", OF_GPT2, {"checkpoint_version": 3.0}),
    "2 ranks, since December 2024": (2, "parts", OF_GPT2 | FPDT, {"checkpoint_version": 3.0}),
    "version 0": (2, "parts", OF_GPT2, {}),
    "version 1": (1, "channels", OF_GPT2, {"checkpoint_version": 1.0}),
}


@pytest.mark.parametrize("case", GPT2_CASES)
def test_our_model_has_the_logits_of_transformers_gpt2(case, tmp_path):
    ranks, order, args, client = GPT2_CASES[case]
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    save(tmp_path, [rank_of_gpt2(model, rank, ranks, order) for rank in range(ranks)], args, **client)
    weights = deepspeed.read(tmp_path, {})
    torch.testing.assert_close(our_logits(weights), logits_of(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_our_model_has_the_logits_of_transformers_llama(ranks, tmp_path):
    model = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-3, rope_theta=500.0))
    parts = [rank_of_llama(model, rank, ranks) for rank in range(ranks)]
    save(tmp_path, parts, OF_LLAMA, checkpoint_version=3.0)
    weights = deepspeed.read(tmp_path, {})
    assert (weights.iteration, weights.model.num_query_groups, weights.model.rotary_base) == (7, 2, 500.0)
    torch.testing.assert_close(our_logits(weights), logits_of(model), rtol=0, atol=1e-5)


def test_bigsciences_swiglu_has_its_gate_last(tmp_path):
    model = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-3, rope_theta=500.0))
    parts = [rank_of_llama(model, rank, 2) for rank in range(2)]
    save(tmp_path / "gate first", parts, OF_LLAMA, checkpoint_version=3.0)
    for name in [name for name in parts[0] if "dense_h_to_4h" in name]:
        for part in parts:
            part[name] = torch.cat(part[name].chunk(2)[::-1])
    args = {**OF_LLAMA, "swiglu": False, "glu_activation": "swiglu"}
    save(tmp_path / "gate last", parts, args, checkpoint_version=3.0)
    first, last = (deepspeed.read(tmp_path / f"gate {place}", {}) for place in ("first", "last"))
    assert first.model == last.model
    require_equal(last.tensors, first.tensors)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"squared_relu": True}, "squared_relu"),
        ({"num_experts": [4]}, "num_experts"),
        ({"glu_activation": "geglu"}, "glu_activation geglu"),
        ({"add_position_embedding": False}, "no position embeddings"),
        ({"position_embedding_type": ["alibi"]}, "position_embedding_type"),
        ({"num_attention_heads": "many"}, "an invalid num_attention_heads 'many'"),
        ({"num_layers": 3}, "no decoder.layers.2.input_layernorm.weight"),
        ({"normalization": 7}, "an invalid normalization 7"),
    ],
)
def test_a_model_that_is_not_ours_is_refused_by_the_name_of_its_setting(args, says, tmp_path):
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    save(tmp_path, [rank_of_gpt2(model, 0, 1, "heads")], OF_GPT2 | args, checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match=re.escape(says)) as caught:
        deepspeed.read(tmp_path, {})
    assert len(str(caught.value).splitlines()) <= 3


def test_ranks_of_different_saves_are_refused(tmp_path):
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    save(tmp_path, [rank_of_gpt2(model, rank, 2, "heads") for rank in range(2)], OF_GPT2, checkpoint_version=3.0)
    file = tmp_path / "mp_rank_01_model_states.pt"
    torch.save(torch.load(file, weights_only=False) | {"global_steps": 8}, file)
    with pytest.raises(CheckpointError, match=r"mp_rank_01_model_states\.pt has global_steps 8, and .* 7"):
        deepspeed.read(tmp_path, {})


def test_a_weight_of_an_unknown_name_is_refused(tmp_path):
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    part = rank_of_gpt2(model, 0, 1, "heads") | {"language_model.encoder.layers.0.mlp.gate.weight": torch.rand(3)}
    save(tmp_path, [part], OF_GPT2, checkpoint_version=3.0)
    with pytest.raises(CheckpointError, match=re.escape("layers.0.mlp.gate.weight")):
        deepspeed.read(tmp_path, {})


def test_without_arguments_what_they_tell_must_be_given(tmp_path):
    model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
    save(tmp_path, [rank_of_gpt2(model, 0, 1, "heads")], OF_GPT2, checkpoint_version=3.0)
    file = tmp_path / "mp_rank_00_model_states.pt"
    torch.save(torch.load(file, weights_only=False) | {"args": None}, file)
    with pytest.raises(CheckpointError, match=r"--set model.activation"):
        deepspeed.read(tmp_path, {})
    with pytest.raises(CheckpointError, match=r"--set model.num_attention_heads"):
        deepspeed.read(tmp_path, {"activation": "gelu_tanh"})
    weights = deepspeed.read(tmp_path, {"activation": "gelu_tanh", "num_attention_heads": 4})
    assert weights.model.seq_length == 32


def test_names_of_a_pipeline_are_counted_from_its_first_layer():
    inside = ("input_layernorm.weight", "self_attention.query_key_value.bias", "mlp.dense_4h_to_h.weight")
    for before in (2, 3):  # microsoft's, bigscience's
        names = [f"{before + layer}.{name}" for layer in range(2) for name in inside]
        names += ["tied_modules.embed.word_embeddings.weight", f"{before + 3}.weight", f"{before + 3}.bias"]
        assert our_names(names, Path("made")) == dict(
            zip(
                names,
                [
                    *("decoder.layers.0.input_layernorm.weight", "decoder.layers.0.self_attention.linear_qkv.bias"),
                    *("decoder.layers.0.mlp.linear_fc2.weight", "decoder.layers.1.input_layernorm.weight"),
                    *("decoder.layers.1.self_attention.linear_qkv.bias", "decoder.layers.1.mlp.linear_fc2.weight"),
                    *("embedding.word_embeddings.weight", "decoder.final_layernorm.weight"),
                    "decoder.final_layernorm.bias",
                ],
                strict=True,
            )
        )


@pytest.mark.parametrize("stages", [["0.word_embeddings.weight", "1.word_embeddings.weight"], ["made.weight"]])
def test_names_that_are_unknown_or_of_one_weight_are_refused(stages):
    with pytest.raises(CheckpointError):
        our_names(stages, Path("made"))
