"""GPT-NeoX's files and layer files of Megatron-DeepSpeed are read as the model that they are of; ours are written."""

from __future__ import annotations

import enum
import sys

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint.dialects import megatron_files, neox_files
from checkpoint.dialects.hugging_face_models import GROUPED, SHAPE, logits_of, random_model, require_equal
from checkpoint.dialects.megatron_files import arguments
from checkpoint.dialects.own_models import our_logits, random_weights, written
from pretrain.checkpoint.conversion.planned_files import TargetLayout
from pretrain.checkpoint.dialects import neox
from pretrain.errors import CheckpointError

CONFIG = {
    "num-layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32, "max_position_embeddings": 32,
    "pos_emb": "rotary", "rotary_pct": 0.25, "no_weight_tying": True, "gpt_j_residual": True, "bias-gelu-fusion": True,
    "attention_config": [[["flash", "global"], 1]], "use_qk_layernorm": False,
}  # fmt: skip
LLAMA_CONFIG = CONFIG | {
    "rotary_pct": 1.0, "rotary_emb_base": 500, "norm": "rmsnorm", "rms_norm_epsilon": 1e-3, "num_kv_heads": 2,
    "gpt_j_residual": False, "activation": "swiglu", "use_bias_in_mlp": False,
}  # fmt: skip
GIVEN = {"activation": "gelu_tanh", "parallel_residual": True}
NEOX = {
    "position_embedding_type": "rope",
    "rotary_percent": 0.5,
    "untie_embeddings_and_output_weights": True,
    "parallel_residual": True,
}
LLAMA = NEOX | {
    "parallel_residual": False,
    "normalization": "RMSNorm",
    "activation": "swiglu",
    "num_query_groups": 2,
    "add_bias_linear": False,
}


@pytest.fixture(scope="module")
def gpt_neox():
    return random_model(transformers.GPTNeoXConfig(**SHAPE, hidden_act="gelu_fast", rotary_pct=0.25))


@pytest.fixture(scope="module")
def gpt2():
    return random_model(megatron_files.GPT2_CONFIG)


def same_logits(weights, model):
    torch.testing.assert_close(our_logits(weights), logits_of(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [None, CONFIG], ids=["given", "with its configuration"])
def test_biases_of_a_parallel_residual_are_summed(gpt_neox, tmp_path, config):
    """Of the weights alone, as GPT-NeoX-20B's are published, the heads are in mp_rank_00."""
    modules = neox_files.neox_modules(gpt_neox, 2, share=0.5)
    states = {"iteration": 150000, "global_samples": 800, "args": neox_files.ARGS | {"model_parallel_size": 2}}
    weights = neox.read(neox_files.store(tmp_path, modules, 2, states, config), GIVEN if config is None else {})
    same_logits(weights, gpt_neox)
    assert (weights.iteration, weights.consumed_samples, weights.vocab_size) == (150000, 800, None)


def test_biases_of_a_serial_layer_are_those_of_each_rank(tmp_path):
    model = random_model(transformers.GPTNeoXConfig(**SHAPE, use_parallel_residual=False, rotary_pct=0.25))
    modules = neox_files.neox_modules(model, 2, names=("mlp.linear1", "mlp.linear2"))
    serial = CONFIG | {"gpt_j_residual": False, "bias-gelu-fusion": False}
    same_logits(neox.read(neox_files.store(tmp_path, modules, 2, None, serial), {}), model)


def test_one_norm_for_both_branches_becomes_two_equal_ones(gpt_neox, tmp_path):
    folder = neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 1), 1, None, CONFIG | {"gpt_j_tied": True})
    tensors = neox.read(folder, {}).tensors
    for kind in ("weight", "bias"):
        first, second = (
            tensors[f"decoder.layers.1.{name}.{kind}"] for name in ("input_layernorm", "pre_mlp_layernorm")
        )
        assert torch.equal(first.whole(), second.whole())


@pytest.mark.parametrize("is_late", [True, False], ids=["since November 2024", "Llama MLP before"])
def test_grouped_queries_and_gates_are_in_either_order(tmp_path, is_late):
    llama = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-3, rope_theta=500.0))
    modules = neox_files.llama_modules(llama, 2, is_late=is_late)
    config = LLAMA_CONFIG if is_late else LLAMA_CONFIG | {"activation": "silu"}
    same_logits(neox.read(neox_files.store(tmp_path, modules, 2, None, config), {}), llama)


def test_a_model_without_pipeline_has_its_weights_in_the_ranks_files(gpt_neox, tmp_path):
    modules = neox_files.neox_modules(gpt_neox, 2, share=0.5)
    neox_files.store(tmp_path, {}, 2, None, CONFIG)
    for rank in range(2):
        module = {
            f"sequential.{number}.{name}": weight
            for number, part in modules.items()
            for name, weight in part(rank).items()
        }
        states = {"module": module, "mp_world_size": 2, "iteration": 5, "args": neox_files.ARGS}
        torch.save(states, tmp_path / f"mp_rank_0{rank}_model_states.pt")
    pipeline = neox.read(neox_files.store(tmp_path / "pipeline", modules, 2, {"args": neox_files.ARGS}, CONFIG), {})
    require_equal(neox.read(tmp_path, {}).tensors, pipeline.tensors)
    (tmp_path / "mp_rank_01_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="mp_rank_01_model_states"):
        neox.read(tmp_path, {})


@pytest.mark.parametrize(
    ("version", "args"),
    [(3.0, {}), (0, {"ds_sequence_parallel_fpdt": False})],
    ids=["Megatron-DeepSpeed", "Microsoft's since December 2024"],
)
def test_pipelines_of_megatron_deepspeed_have_the_logits_of_transformers(gpt2, tmp_path, version, args):
    """Biases are whole on each rank, and the order of queries, keys and values is not what the version says."""
    modules = neox_files.megatron_deepspeed_modules(gpt2, 2, version)
    states = {"args": arguments(consumed_train_samples=77, **args), "checkpoint_version": 3.0, "global_steps": 9}
    weights = neox.read(neox_files.store(tmp_path, modules, 2, states), {})
    same_logits(weights, gpt2)
    assert (weights.iteration, weights.consumed_samples) == (9, 77)
    assert "Megatron-DeepSpeed" in weights.format


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


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([{}, NEOX, NEOX | {"activation": "gelu_tanh"}, LLAMA]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
)
def test_what_is_written_is_read_again_bit_by_bit(tmp_path_factory, model, tensor, stages):
    weights = random_weights(**model)
    target = neox.write(weights, TargetLayout(tensor=tensor, pipeline=stages))
    folder = written(target, tmp_path_factory.mktemp("target"))
    folder = folder / (folder / "latest").read_text()
    again = neox.read(folder, {})
    require_equal(again.with_vocabulary(11).tensors, weights.tensors)
    assert again.model == weights.model
    assert (again.rows, again.iteration, again.consumed_samples) == (12, 7, 56)
    assert len(list(folder.glob("mp_rank_*"))) == tensor * stages


def test_of_a_summed_bias_one_rank_has_all(tmp_path):
    weights = random_weights(**NEOX)
    folder = written(neox.write(weights, TargetLayout(tensor=2)), tmp_path) / "global_step7"
    biases = [
        torch.load(folder / f"layer_02-model_0{rank}-model_states.pt")["attention.dense.bias"] for rank in range(2)
    ]
    assert torch.equal(biases[0], weights.tensors["decoder.layers.0.self_attention.linear_proj.bias"].whole())
    assert not biases[1].any()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (None, "activation and parallel_residual"),
        (CONFIG | {"activation": "geglu"}, "activation geglu"),
        (CONFIG | {"pos_emb": "alibi"}, "pos_emb alibi"),
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
    with pytest.raises(CheckpointError, match=r"does not have: extra.weight of layer 5"):
        neox.read(neox_files.store(tmp_path / "more", modules | more, 1, None, CONFIG), {})
    without_the_last = {number: part for number, part in modules.items() if number != 3}
    with pytest.raises(CheckpointError, match=r"no decoder.layers.1.input_layernorm.weight"):
        neox.read(neox_files.store(tmp_path / "fewer", without_the_last, 1, None, CONFIG), {})


def test_a_folder_of_another_format_is_none(tmp_path):
    assert neox.read(tmp_path, {}) is None


@pytest.mark.parametrize(
    ("model", "layout", "named"),
    [
        ({"embedding_layernorm": True}, {}, "embedding_layernorm"),
        ({"add_bias_linear": False}, {}, "activation gelu without add_bias_linear"),
        (LLAMA | {"parallel_residual": True}, {}, "parallel_residual without add_bias_linear"),
        (LLAMA | {"add_qkv_bias": True}, {}, "add_qkv_bias"),
        ({"position_embedding_type": "rope", "use_rope_scaling": True}, {}, "use_rope_scaling"),
        ({"kv_channels": 8}, {}, "kv_channels"),
        (LLAMA, {"tensor": 4}, "num_query_groups 2 on 4 ranks"),
    ],
)
def test_models_and_layouts_that_gpt_neox_does_not_have_are_refused(model, layout, named):
    with pytest.raises(CheckpointError, match=named):
        neox.write(random_weights(**model), TargetLayout(**layout))
