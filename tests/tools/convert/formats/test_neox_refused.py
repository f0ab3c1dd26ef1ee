"""Files of GPT-NeoX and Megatron-DeepSpeed that are incomplete, of two saves, or of no model of ours are refused."""

from __future__ import annotations

import enum
import sys

import pytest
import torch
import transformers

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats import neox, neox_writer
from pretrain.tools.convert.model_weights import FileLayout
from pretrain.tools.convert.registry import summary_of
from tools.convert.formats import megatron_files, neox_files
from tools.convert.formats.hugging_face_models import GROUPED, SHAPE, random_model
from tools.convert.formats.megatron_files import arguments
from tools.convert.formats.neox_files import CONFIG, GIVEN, LLAMA, LLAMA_CONFIG
from tools.convert.formats.own_models import random_weights


@pytest.fixture(scope="module")
def gpt_neox():
    return random_model(transformers.GPTNeoXConfig(**SHAPE, hidden_act="gelu_fast", rotary_pct=0.25))


@pytest.fixture(scope="module")
def gpt2():
    return random_model(megatron_files.GPT2_CONFIG)


def test_an_epsilon_of_the_norm_before_may_2025_must_be_given(tmp_path):
    llama = random_model(transformers.LlamaConfig(**GROUPED))
    modules = neox_files.llama_modules(llama, 1, is_late=False)
    folder = neox_files.store(tmp_path / "first", modules, 1, None, LLAMA_CONFIG)
    for same in ({}, {"layernorm_epsilon": 1e-3}):  # a recipe gives all settings, those of the file too
        with pytest.raises(CheckpointError, match=r"rms_norm_epsilon 0\.001"):
            neox.read(folder, same)
    assert neox.read(folder, {"layernorm_epsilon": 1e-9}).model.layernorm_epsilon == 1e-9
    fused = neox_files.store(tmp_path / "fused", modules, 1, None, LLAMA_CONFIG | {"rmsnorm_fusion": True})
    assert neox.read(fused, {}).model.layernorm_epsilon == 1e-3


class PositionEmbeddingType(enum.Enum):
    """bigscience's, of which a file has the value alone."""

    absolute = 2
    alibi = 3


@pytest.mark.parametrize("kind", PositionEmbeddingType)
def test_bigsciences_norm_of_the_embedding_is_read_and_alibi_refused(gpt2, tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "megatron.enums", sys.modules[__name__])
    monkeypatch.setattr(PositionEmbeddingType, "__module__", "megatron.enums")
    modules = neox_files.megatron_deepspeed_modules(gpt2, 1, 3.0)
    norm = {"word_embeddings.norm.weight": torch.ones(64), "word_embeddings.norm.bias": torch.zeros(64)}
    states = {"args": arguments(position_embedding_type=kind), "checkpoint_version": 3.0}
    folder = neox_files.store(tmp_path, modules | {1: lambda rank: modules[1](rank) | norm}, 1, states)
    if kind is PositionEmbeddingType.alibi:
        with pytest.raises(CheckpointError, match="position_embedding_type alibi"):
            neox.read(folder, {})
    else:
        assert neox.read(folder, {}).model.embedding_layernorm


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (None, "activation and parallel_residual"),
        (CONFIG | {"activation": "geglu"}, "activation 'geglu'"),
        (CONFIG | {"pos_emb": "alibi"}, "pos_emb 'alibi'"),
        (CONFIG | {"norm": ["layernorm"]}, "norm"),
        (CONFIG | {"attention_config": [[["local"], 2]]}, "attention_config local"),
        (CONFIG | {"use_qk_layernorm": True}, "use_qk_layernorm"),
        (CONFIG | {"hidden_size": "wide"}, "hidden_size"),
    ],
)
def test_models_that_are_not_ours_are_refused_by_name(gpt_neox, tmp_path, config, named):
    neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 1), 1, {"args": neox_files.ARGS}, config)
    with pytest.raises(CheckpointError, match=named) as refused:
        neox.read(tmp_path, {})
    assert len(str(refused.value).splitlines()) <= 3


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: &a [x, x]\nmoe_num_experts: [*a, *a]\n", "aliases"),
        ("a: " + "x" * 1_000_000, "1,000,000 bytes"),
    ],
    ids=["aliases", "large"],
)
def test_a_configuration_that_could_fill_the_memory_is_refused(gpt_neox, tmp_path, text, named):
    """Nested aliases of 951 bytes were 5 GB of text."""
    neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 1), 1, None, CONFIG)
    (tmp_path / "configs" / "more.yml").write_text(text)
    with pytest.raises(DamageError, match=named):
        neox.read(tmp_path, {})


def test_files_of_two_saves_are_refused(gpt_neox, tmp_path):
    states = {"iteration": 5, "args": neox_files.ARGS}
    neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 2), 2, states, CONFIG)
    torch.save(states, tmp_path / "mp_rank_01_model_states.pt")
    neox.read(tmp_path, {})
    torch.save(states | {"iteration": 6}, tmp_path / "mp_rank_01_model_states.pt")
    with pytest.raises(CheckpointError, match=r"is of iteration 5, and mp_rank_01_model_states\.pt of 6"):
        neox.read(tmp_path, {})


def test_a_tied_copy_that_differs_is_not_lost(gpt2, tmp_path):
    """Its position embeddings may differ: gradients are exchanged for the words alone."""
    modules = neox_files.megatron_deepspeed_modules(gpt2, 1, 3.0)
    last = max(modules)

    def changed(name):
        folder = tmp_path / name
        copy = {last: lambda rank: modules[last](rank) | {name: modules[last](rank)[name] + 1}}
        return neox_files.store(folder, modules | copy, 1, {"args": arguments(), "checkpoint_version": 3.0})

    words = neox.read(changed("position_embeddings.weight"), {}).tensors["embedding.word_embeddings.weight"].whole()
    assert torch.equal(words, gpt2.transformer.wte.weight)
    other = changed("word_embeddings.weight")
    with pytest.raises(CheckpointError, match=f"word_embeddings.weight of layer {last} differs"):
        neox.read(other, {}).tensors["embedding.word_embeddings.weight"].whole()
    untied = neox.read(other, {"untie_embeddings_and_output_weights": True}).tensors["output_layer.weight"].whole()
    assert torch.equal(untied, gpt2.transformer.wte.weight + 1)


@pytest.mark.parametrize("kind", ["GPT-NeoX", "Megatron-DeepSpeed", "Microsoft's"])
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_a_lost_first_or_last_layer_is_no_shallower_model(gpt_neox, gpt2, tmp_path, kind, is_first):
    """Nor for `inspect`; arguments and configuration are often lost with it."""
    if kind == "GPT-NeoX":
        modules, layers = neox_files.neox_modules(gpt_neox, 1), gpt_neox.config.num_hidden_layers
    else:
        between, layers = (0 if kind == "Microsoft's" else 1), gpt2.config.n_layer
        modules = neox_files.megatron_deepspeed_modules(gpt2, 1, 3.0, between)
    lost = sorted(modules)[1 if is_first else layers]
    rest = {number: part for number, part in modules.items() if number != lost}
    folder = neox_files.store(tmp_path, rest, 1)
    for read in (summary_of, lambda folder: neox.read(folder, GIVEN | {"num_attention_heads": 4})):
        with pytest.raises(CheckpointError, match=f"Copy the files of layer {lost} "):
            read(folder)


@pytest.mark.parametrize(
    ("number", "change", "named"),
    [
        (2, lambda state: state.pop("mlp.dense_4h_to_h.bias"), "lacks mlp.dense_4h_to_h.bias"),
        (3, lambda state: state.update({"attention.dense.bias": torch.ones(3)}), r"\[3\]"),
        (5, lambda state: state.update({"extra.weight": torch.ones(3)}), "extra.weight"),
    ],
)
def test_ranks_that_do_not_belong_together_are_refused(gpt_neox, tmp_path, number, change, named):
    neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 2), 2, None, CONFIG)
    path = tmp_path / f"layer_0{number}-model_01-model_states.pt"
    state = torch.load(path)
    change(state)
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=named):
        neox.read(tmp_path, {})


def test_weights_that_are_not_known_and_missing_layers_are_refused(gpt_neox, tmp_path):
    modules = neox_files.neox_modules(gpt_neox, 1)
    more = {5: lambda rank: modules[5](rank) | {"extra.weight": torch.ones(3)}}
    with pytest.raises(CheckpointError, match=r"not of a GPT: extra.weight of layer 5"):
        neox.read(neox_files.store(tmp_path / "more", modules | more, 1, None, CONFIG), {})
    config = CONFIG | {"num-layers": 3}
    with pytest.raises(CheckpointError, match=r"no decoder.layers.2.input_layernorm.weight"):
        neox.read(neox_files.store(tmp_path / "fewer", modules, 1, None, config), {})


def test_a_folder_of_another_format_is_none(tmp_path):
    assert neox.read(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("model", "layout", "named"),
    [
        ({"embedding_layernorm": True}, {}, "embedding_layernorm"),
        (LLAMA | {"parallel_residual": True}, {}, "parallel_residual without add_bias_linear"),
        (LLAMA | {"add_qkv_bias": True}, {}, "add_qkv_bias"),
        ({"position_embedding_type": "rope", "use_rope_scaling": True}, {}, "use_rope_scaling"),
        ({"kv_channels": 8}, {}, "kv_channels"),
        (LLAMA, {"tensor": 4}, "num_query_groups 2 on 4 ranks"),
    ],
)
def test_models_and_layouts_that_gpt_neox_does_not_have_are_refused(model, layout, named):
    with pytest.raises(CheckpointError, match=named):
        neox_writer.write(random_weights(**model), FileLayout(**layout))
