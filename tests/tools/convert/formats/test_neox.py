"""GPT-NeoX's files and layer files of Megatron-DeepSpeed are read as the model that they are of; ours are written."""

from __future__ import annotations

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.errors import CheckpointError
from pretrain.tools.convert.formats import neox, neox_writer
from pretrain.tools.convert.formats.neox_layers import rotary_percent
from pretrain.tools.convert.model_weights import FileLayout
from tools.convert.formats import megatron_files, neox_files
from tools.convert.formats.hugging_face_models import GROUPED, SHAPE, counted, logits_of, random_model, require_equal
from tools.convert.formats.megatron_files import arguments
from tools.convert.formats.neox_files import CONFIG, GIVEN, LLAMA, LLAMA_CONFIG, NEOX
from tools.convert.formats.own_models import our_logits, random_weights, written


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


@pytest.mark.parametrize("is_parallel", [True, False])
def test_one_norm_for_both_branches_becomes_two_equal_ones(gpt_neox, tmp_path, is_parallel):
    """A serial layer has both, whatever gpt_j_tied says (ParallelTransformerLayer.forward)."""
    config = CONFIG | {"gpt_j_tied": True, "gpt_j_residual": is_parallel}
    tensors = neox.read(neox_files.store(tmp_path, neox_files.neox_modules(gpt_neox, 1), 1, None, config), {}).tensors
    for kind in ("weight", "bias"):
        first, second = (
            tensors[f"decoder.layers.1.{name}.{kind}"] for name in ("input_layernorm", "pre_mlp_layernorm")
        )
        assert torch.equal(first.whole(), second.whole()) == is_parallel


@pytest.mark.parametrize("is_late", [True, False], ids=["since November 2024", "Llama MLP before"])
def test_grouped_queries_and_gates_are_in_either_order(tmp_path, monkeypatch, is_late):
    """The norm adds its epsilon to the mean square, and before 4c9f1081 to the root, here GPT-NeoX's default 1e-8."""
    epsilon = 1e-3 if is_late else 1e-8
    llama = random_model(transformers.LlamaConfig(**GROUPED, rms_norm_eps=epsilon, rope_theta=500.0))
    modules = neox_files.llama_modules(llama, 2, is_late=is_late)
    config = LLAMA_CONFIG | ({} if is_late else {"activation": "silu"}) | {"rms_norm_epsilon": epsilon}
    if not is_late:
        monkeypatch.setattr(type(llama.model.norm), "forward", neox_files.rms_norm_until_2025)
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
    ("version", "between", "args"),
    [(3.0, 1, {}), (0, 0, {"ds_sequence_parallel_fpdt": False})],
    ids=["Megatron-DeepSpeed", "Microsoft's since December 2024"],
)
def test_pipelines_of_megatron_deepspeed_have_the_logits_of_transformers(gpt2, tmp_path, version, between, args):
    """Biases are whole on each rank, and the order of queries, keys and values is not what the version says."""
    modules = neox_files.megatron_deepspeed_modules(gpt2, 2, version, between)
    states = {"args": arguments(consumed_train_samples=77, **args), "checkpoint_version": 3.0, "global_steps": 9}
    weights = neox.read(neox_files.store(tmp_path, modules, 2, states), {})
    same_logits(weights, gpt2)
    assert (weights.iteration, weights.consumed_samples) == (9, 77)
    assert "Megatron-DeepSpeed" in weights.format


def test_bigsciences_swiglu_has_its_gate_last(gpt2, tmp_path):
    def read(name, *, is_last, **args):
        modules = {
            number: (lambda rank, part=part: neox_files.gated(part(rank), is_last=is_last))
            for number, part in neox_files.megatron_deepspeed_modules(gpt2, 2, 3.0).items()
        }
        states = {"args": arguments(**args), "checkpoint_version": 3.0}
        return neox.read(neox_files.store(tmp_path / name, modules, 2, states), {})

    first = read("gate first", is_last=False, swiglu=True)
    last = read("gate last", is_last=True, swiglu=False, glu_activation="swiglu")
    assert first.model == last.model
    assert first.model.activation == "swiglu"
    require_equal(last.tensors, first.tensors)


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([{}, NEOX, NEOX | {"activation": "gelu_tanh"}, LLAMA]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2]),
)
def test_what_is_written_is_read_again_bit_by_bit(tmp_path_factory, model, tensor, stages):
    weights = random_weights(**model)
    target = neox_writer.write(weights, FileLayout(tensor=tensor, pipeline=stages))
    folder = written(target, tmp_path_factory.mktemp("target"))
    folder = folder / (folder / "latest").read_text()
    again = neox.read(folder, {})
    require_equal(again.with_vocabulary(11).tensors, weights.tensors)
    assert again.model == weights.model
    assert (again.rows, again.iteration, again.consumed_samples) == (12, 7, 56)
    assert len(list(folder.glob("mp_rank_*"))) == tensor * stages


def test_each_row_is_read_once(tmp_path):
    """Of weights that ranks divide by rows; grouped queries are so, too."""
    weights, counts = counted(random_weights(**LLAMA))
    written(neox_writer.write(weights, FileLayout(tensor=2)), tmp_path)
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    assert counts[name] == weights.tensors[name].shape[0]


def test_of_a_summed_bias_one_rank_has_all(tmp_path):
    weights = random_weights(**NEOX)
    folder = written(neox_writer.write(weights, FileLayout(tensor=2)), tmp_path) / "global_step7"
    biases = [
        torch.load(folder / f"layer_02-model_0{rank}-model_states.pt")["attention.dense.bias"] for rank in range(2)
    ]
    assert torch.equal(biases[0], weights.tensors["decoder.layers.0.self_attention.linear_proj.bias"].whole())
    assert not biases[1].any()


def test_the_rotated_share_of_a_head_gives_its_size_again():
    """int(head * share) is what GPT-NeoX, megatron-core and transformers compute; 88 * (30 / 88) is below 30."""
    for head in range(2, 300):
        for size in range(2, head + 1, 2):
            assert int(head * rotary_percent(size, head)) == size
            assert 0 < rotary_percent(size, head) <= 1
    assert rotary_percent(24, 96, 0.2525) == 0.2525
    assert rotary_percent(24, 96, 0.2) == 0.25


def test_biases_that_gpt_neoxs_gelu_has_are_0(tmp_path):
    weights = random_weights(add_bias_linear=False, parallel_residual=True)
    folder = written(neox_writer.write(weights, FileLayout(tensor=2)), tmp_path) / "global_step7"
    there = neox.read(folder, {})
    assert there.model.add_bias_linear
    assert not there.tensors["decoder.layers.1.mlp.linear_fc1.bias"].whole().any()
    require_equal(neox.read(folder, {"add_bias_linear": False}).with_vocabulary(11).tensors, weights.tensors)
