"""Universal checkpoints that are written: DeepSpeed loads them, in all stages of ZeRO, and we read them again."""

from __future__ import annotations

import math
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import transformers
from hypothesis import given, settings, strategies

from pretrain.bridge import deepspeed as bridge
from pretrain.errors import CheckpointError
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.formats import deepspeed, deepspeed_writer
from pretrain.tools.convert.formats.deepspeed_weights import their_name
from pretrain.tools.convert.lazy_tensor import cast
from pretrain.tools.convert.model_weights import FileLayout
from pretrain.tools.convert.registry import summary_of
from tools.convert.formats import zero_ranks
from tools.convert.formats.hugging_face_models import GPT2, GROUPED, NO_DROPOUT, random_model, require_equal
from tools.convert.formats.megatron_deepspeed import FPDT, OF_GPT2, OF_LLAMA, by_ours, rank_of_gpt2, rank_of_llama, save
from tools.convert.formats.own_models import random_weights, written


@contextmanager
def world_of_one():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        bridge.disconnect()
        dist.destroy_process_group()


@pytest.mark.parametrize("name", zero_ranks.CASES)
def test_deepspeed_loads_what_is_written_and_trains_on(name, tmp_path):
    from deepspeed.utils import safe_get_full_fp32_param

    section = zero_ranks.ARGS | {"activation": "gelu_tanh", "make_vocab_size_divisible_by": 2}
    model = {each: section[each] for each in section if each in ModelSection.model_fields}
    weights = random_weights(zero_ranks.VOCAB - 1, **model)
    written(deepspeed_writer.write(weights, FileLayout()), tmp_path)
    written_again = deepspeed.read(tmp_path / "global_step7", {}).tensors
    summary = summary_of(tmp_path)
    assert (summary.format, summary.parts) == ("DeepSpeed, universal", FileLayout())
    assert summary.parameters == sum(math.prod(tensor.shape) for tensor in written_again.values())
    stage, dtype, more = zero_ranks.CASES[name]
    with world_of_one():
        engine = zero_ranks.engine_of(stage, dtype, {**more, "checkpoint": {"load_universal": True}}, seed=1)
        engine.load_checkpoint(tmp_path, load_module_only=stage == 3)
        loaded = {
            each: safe_get_full_fp32_param(parameter).clone() for each, parameter in engine.module.named_parameters()
        }
        engine.backward(engine())
        engine.step()
        engine.destroy()
    qkv = {each: tensor for each, tensor in loaded.items() if "query_key_value" in each}
    for each, tensor in qkv.items():  # [q, k, v][head][channel]
        loaded[each] = tensor.view(3, 2, 6, *tensor.shape[1:]).transpose(0, 1).reshape(tensor.shape)
    for each, tensor in by_ours(loaded).items():
        assert torch.equal(tensor.whole(), written_again[each].whole()), each


@pytest.mark.parametrize("is_llama", [False, True])
def test_a_rank_of_deepspeed_gets_its_part_of_what_is_written(is_llama, tmp_path):
    if is_llama:
        model = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-3, rope_theta=500.0))
        args, parts = OF_LLAMA, [rank_of_llama(model, rank, 2) for rank in range(2)]
    else:
        model = random_model(transformers.GPT2Config(**GPT2, **NO_DROPOUT))
        args, parts = OF_GPT2 | FPDT, [rank_of_gpt2(model, rank, 2, "parts") for rank in range(2)]
    save(tmp_path / "divided", parts, args, checkpoint_version=3.0)
    target = deepspeed_writer.write(deepspeed.read(tmp_path / "divided", {}), FileLayout())
    folder = written(target, tmp_path / "universal") / "global_step7"
    for rank, part in enumerate(parts):
        for name, expected in part.items():
            assert torch.equal(loaded_part(folder / "zero" / name, expected.shape, rank, 2), expected), name


def loaded_part(folder, shape, rank, ranks):
    """Return what DeepSpeed gives a tensor-parallel rank of a weight."""
    from deepspeed.checkpoint.universal_checkpoint import load_hp_checkpoint_state

    got = torch.empty(shape)
    address = SimpleNamespace(start=0, numel=got.numel())
    mapping = SimpleNamespace(lp_fragment_address=address, get_hp_fragment=lambda: got.view(-1))
    load_hp_checkpoint_state(
        SimpleNamespace(_hp_mapping=mapping, shape=got.shape, numel=got.numel), folder, rank, ranks
    )
    return got


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_a_vocabulary_for_4_ranks_fits_any_number_of_them(ranks, tmp_path):
    weights = random_weights(11, make_vocab_size_divisible_by=1)
    folder = written(deepspeed_writer.write(weights, FileLayout(tensor=4)), tmp_path) / "global_step7"
    name = "embedding.word_embeddings.weight"
    rows = weights.model.padded_vocab_size(11, ranks)
    place = folder / "zero" / their_name(name)
    parts = [loaded_part(place, (rows // ranks, 16), rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat(parts)[:11], weights.tensors[name].whole().float())


@settings(max_examples=10)
@given(
    tensor=strategies.sampled_from([1, 2]),
    heads=strategies.sampled_from([(4, 4), (4, 2)]),
    norm=strategies.sampled_from(["LayerNorm", "RMSNorm"]),
    positions=strategies.sampled_from(["rope", "learned_absolute"]),
    activation=strategies.sampled_from(["gelu", "gelu_tanh", "swiglu"]),
    add_bias_linear=strategies.booleans(),
    untied=strategies.booleans(),
    vocab_size=strategies.sampled_from([None, 21]),
)
def test_what_is_written_is_read_again(
    tmp_path_factory, tensor, heads, norm, positions, activation, add_bias_linear, untied, vocab_size
):
    model = ModelSection(
        num_layers=1, hidden_size=8, num_attention_heads=heads[0], num_query_groups=heads[1], kv_channels=3,
        ffn_hidden_size=6, seq_length=5, max_position_embeddings=7, normalization=norm, activation=activation,
        position_embedding_type=positions, rotary_percent=0.5, rotary_base=123.5, layernorm_epsilon=1e-6,
        add_bias_linear=add_bias_linear, untie_embeddings_and_output_weights=untied, make_vocab_size_divisible_by=16,
        hidden_dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    weights = replace(random_weights(24, **model.model_dump(exclude_unset=True)), vocab_size=vocab_size)
    target = deepspeed_writer.write(weights, FileLayout(tensor=tensor))
    again = deepspeed.read(written(target, tmp_path_factory.mktemp("written")) / "global_step7", {})
    ours = model.model_dump()
    told = {"rotary_percent", "rotary_base"} if positions == "learned_absolute" else set()
    assert {each: value for each, value in again.model.model_dump().items() if each not in told} == {
        each: value for each, value in ours.items() if each not in told
    }
    assert again.vocab_size == (vocab_size or 24)
    assert again.rows == (model.padded_vocab_size(again.vocab_size, 1) if tensor == 1 else again.vocab_size)
    padded = again.tensors["embedding.word_embeddings.weight"].whole()
    assert torch.equal(padded[again.vocab_size :], padded[[again.vocab_size - 1] * (again.rows - again.vocab_size)])
    exact = {name: cast(each, torch.float32, name) for name, each in weights.with_vocabulary(21).tensors.items()}
    require_equal(again.with_vocabulary(21).tensors, exact)


@pytest.mark.parametrize("setting", ["parallel_residual", "embedding_layernorm", "use_rope_scaling", "add_qkv_bias"])
def test_a_model_that_megatron_deepspeed_does_not_have_is_not_written(setting):
    values = {setting: True, "add_bias_linear": setting != "add_qkv_bias", "position_embedding_type": "rope"}
    with pytest.raises(CheckpointError, match=setting):
        deepspeed_writer.write(random_weights(**values), FileLayout())
