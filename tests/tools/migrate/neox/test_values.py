"""Values that several settings of GPT-NeoX make together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.neox import model, training
from pretrain.tools.migrate.setting import Setting, Settings
from tools.migrate.neox.small import small_neox

PROGRAM = small_neox()
MICRO, BATCH, STEPS = "train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"


# batches


def test_the_global_batch_is_worked_out_of_the_devices(work):
    stated = {MICRO: 4, STEPS: 32, "model_parallel_size": 2, "pipe_parallel_size": 4}
    found = work("train.global_batch_size", devices=96, **stated)
    assert (found.value, found.note) == (1536, "4 x 32 steps of accumulation x 12 replicas")
    assert found.names == (MICRO, STEPS)


@pytest.mark.parametrize(
    "known", [{"devices": 8}, {"global_num_gpus": 8}, {"num_gpus": 4, "num_nodes": 2}, {"devices": 8, "num_gpus": 3}]
)
def test_devices_are_told_in_several_ways(value, known):
    assert value("train.global_batch_size", **{MICRO: 2}, **known) == 16


def test_a_stated_global_batch_needs_no_devices(value):
    assert value("train.global_batch_size", **{BATCH: 64, MICRO: 4}) == 64
    assert value("train.micro_batch_size", **{BATCH: 64, MICRO: 4}) == 4


def test_the_micro_batch_is_what_the_global_one_leaves(value):
    assert value("train.micro_batch_size", devices=8, **{BATCH: 64, STEPS: 2}) == 4


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({MICRO: 4}, r"^x.yml:3: .* no source gives\.\nGive --devices N"),
        ({MICRO: 4, "num_gpus": 8}, "no source gives"),  # of each node
        ({MICRO: 4, "devices": 8, "model_parallel_size": 3}, "8 devices are not a multiple of 3"),
        ({BATCH: 9, "devices": 8}, "9 samples are not a multiple of 1 steps of accumulation x 8 replicas"),
        ({BATCH: 9, MICRO: 1, STEPS: 2, "devices": 4}, r"^x.yml:3: train_batch_size: 9 is not 1 x 2 steps .* = 8"),
        ({BATCH: 64, MICRO: 4, "devices": 8}, r"^x.yml:3: train_batch_size: 64 is not 4 x 1 steps .* = 32"),
        ({MICRO: "auto"}, "train_micro_batch_size_per_gpu: 'auto' is not a whole number"),
    ],
)
def test_batches_that_do_not_fit_are_refused(value, stated, message):
    with pytest.raises(MigrateError, match=message):
        [value(f"train.{name}_batch_size", **stated) for name in ("micro", "global")]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(0, 4), st.integers(1, 4))
def test_any_two_sizes_give_the_third(micro, steps, tensor, pipe, replicas):
    sizes = {STEPS: steps, "model_parallel_size": tensor, "pipe_parallel_size": pipe}
    devices, batch = tensor * max(1, pipe) * replicas, micro * steps * replicas

    def of(**stated):
        found = {name: Setting(name, number, name) for name, number in {**sizes, **stated}.items()}
        return Settings(PROGRAM, found, devices)

    assert training.global_batch_size(of(**{MICRO: micro})).value == batch
    assert training.micro_batch_size(of(**{BATCH: batch})).value == micro
    assert training.global_batch_size(of(**{MICRO: micro, BATCH: batch})).value == batch


# model


@pytest.mark.parametrize(
    ("stated", "activation"),
    [
        ({}, "gelu"),
        ({"bias_gelu_fusion": True}, "gelu_tanh"),
        ({"activation": "swiglu"}, "swiglu"),
        ({"activation": "geglu"}, "swiglu"),
        ({"activation": "relu"}, "gelu"),
    ],
)
def test_activation(work, stated, activation):
    found = work("model.activation", **stated)
    assert found.value == activation
    offered = stated.get("activation", "gelu") in {"gelu", "swiglu"}
    assert bool(found.lost) != offered


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ({}, None),  # 4 x hidden_size in a recipe too
        ({"intermediate_size": 1000}, 1000),
        ({"expansion_factor": 3.5}, 14336),
        ({"activation": "swiglu", "intermediate_size": 32768, "mlp_multiple_of": 256}, 11008),  # LLaMA 7B
        ({"activation": "swiglu"}, 5461),
        ({"mlp_multiple_of": 1000}, 17000),
    ],
)
def test_width_of_the_mlp(value, stated, width):
    assert value("model.ffn_hidden_size", hidden_size=4096, **stated) == width


@pytest.mark.parametrize("factor", [1e308, -2, float("nan"), 10**400])
def test_a_width_out_of_range_is_refused(value, factor):
    with pytest.raises(MigrateError, match=r"^x.yml:3: expansion_factor: "):
        value("model.ffn_hidden_size", hidden_size=4096, expansion_factor=factor)


def test_a_width_and_a_factor_are_refused(value):
    with pytest.raises(MigrateError, match=r"^x.yml:3: expansion_factor: intermediate_size is 8, and"):
        value("model.ffn_hidden_size", hidden_size=4, intermediate_size=8, expansion_factor=4)


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ({}, None),
        ({"intermediate_size": 1000}, None),  # read by LLaMA's MLP alone
        ({"activation": "geglu"}, 8192),
        ({"mlp_type": "llama", "activation": "silu"}, 11008),  # LLaMA 7B
        ({"mlp_type": "llama", "activation": "silu", "intermediate_size": 14336}, 14336),  # Mistral 7B
    ],
)
def test_width_of_the_mlp_until_september_2024(value, stated, width):
    assert value("model.ffn_hidden_size", hidden_size=4096, version="2024.08", **stated) == width


def test_the_mlp_of_llama(work):
    stated = {"mlp_type": "llama", "version": "2024.08"}
    assert work("model.activation", activation="silu", **stated).value == "swiglu"
    assert work("model.activation", activation="gelu", **stated).lost[0][1].startswith("an MLP gated by gelu")
    dropped = work("model.activation", activation="silu", hidden_dropout=0.1, **stated)
    assert dropped.lost[0][0] == "hidden_dropout"
    assert work("model.add_bias_linear", use_bias_in_attn_linear=False, **stated).lost == ()
    assert work("model.add_bias_linear", **stated).lost[0][0] == "mlp_type"
    with pytest.raises(MigrateError, match=r"activation: GPT-NeoX 2024\.08 has no swiglu"):
        work("model.activation", activation="swiglu", **stated)


@given(st.integers(1, 9000), st.integers(1, 300))
def test_a_gated_mlp_has_a_third_of_the_width_in_multiples(width, multiple):
    stated = {"activation": "swiglu", "hidden_size": 8, "intermediate_size": width, "mlp_multiple_of": multiple}
    found = model.ffn_hidden_size(Settings(PROGRAM, {name: Setting(name, v, name) for name, v in stated.items()}))
    assert found.value % multiple == 0
    assert width / 3 - 1.5 < found.value <= width / 3 + multiple


def test_the_norm_chooses_its_epsilon(work):
    assert work("model.normalization", norm="rmsnorm").value == "RMSNorm"
    rms = work("model.layernorm_epsilon", norm="rmsnorm", layernorm_epsilon=1e-4)
    assert (rms.value, rms.idle[0][0]) == (1e-8, "layernorm_epsilon")
    assert work("model.layernorm_epsilon").value == 1e-5
    assert work("model.normalization", norm="scalenorm").lost[0][0] == "norm"


@pytest.mark.parametrize(
    ("pos_emb", "here", "lost"),
    [
        ("rotary", "rope", False),
        ("learned", "learned_absolute", False),
        ("none", "learned_absolute", True),
        ("alibi", "learned_absolute", True),
    ],
)
def test_positions(work, pos_emb, here, lost):
    found = work("model.position_embedding_type", pos_emb=pos_emb)
    assert (found.value, bool(found.lost)) == (here, lost)
    assert (work("model.rotary_percent", pos_emb=pos_emb, rotary_pct=0.25).value == 0.25) == (here == "rope")


def test_biases_of_attention_and_mlp_go_together(work):
    both = {"use_bias_in_attn_linear": False, "use_bias_in_mlp": False}
    assert work("model.add_bias_linear", **both).value is False
    apart = work("model.add_bias_linear", use_bias_in_attn_linear=False)
    assert (apart.value, apart.lost[0][0]) == (False, "use_bias_in_mlp")


@pytest.mark.parametrize(
    ("config", "kernel"),
    [
        (None, "auto"),
        ([[["global"], 2]], "auto"),
        ([[["flash"], "all"]], "flash"),
        ([[["flash"], 1], [["flash"], 1]], "flash"),
        (["flash", "flash"], "flash"),
        ([[["global", "flash"], 6]], "auto"),
    ],
)
def test_kernel_of_attention(work, config, kernel):
    found = work("kernels.attention", attention_config=config)
    assert (found.value, found.lost) == (kernel, ())


def test_other_attention(work):
    assert work("kernels.attention", attention_config=[[["local", "global"], "all"]]).lost[0][1].startswith("local is")
    assert work("kernels.attention", use_triangle_attn=True).value == "triangle"
    assert work("kernels.attention", attention_config=[[["mamba"], 24]]).lost[0][1].startswith("mamba is not supported")


def test_starting_weights(work):
    assert work("model.init_method", init_method="small_init").value == "small_init"
    assert work("model.init_method", init_method="orthogonal").lost[0][0] == "init_method"
    assert work("model.output_layer_init_method").value == "scaled_normal"


def test_softmax(value):
    assert value("model.attention_softmax_in_fp32") is False
    assert value("model.attention_softmax_in_fp32", scaled_upper_triang_masked_softmax_fusion=True) is True
    assert value("model.attention_softmax_in_fp32", attention_config=[[["flash"], 2]]) is True


# text


def test_a_json_tokenizer_is_the_file(value):
    stated = {"tokenizer_type": "HFTokenizer", "vocab_file": "x/20B.json"}
    keys = ("type", "file", "vocab_file", "merge_file")
    found = [value(f"tokenizer.{key}", **stated) for key in keys]
    assert found == ["huggingface", "x/20B.json", None, None]


def test_gpt2_has_two_files(value):
    stated = {"vocab_file": "v.json", "merge_file": "m.txt"}
    found = [value(f"tokenizer.{key}", **stated) for key in ("type", "file", "vocab_file", "merge_file")]
    assert found == ["gpt2", None, "v.json", "m.txt"]


def test_other_tokenizers_are_said_to_be_missing(work):
    stated = {"tokenizer_type": "SPMTokenizer", "vocab_file": "llama/tokenizer.model"}
    assert work("tokenizer.type", **stated).lost[0][1].startswith("SPMTokenizer is not supported")
    assert work("tokenizer.file", **stated).value == "llama/tokenizer.json"


def test_one_token_file(value):
    assert value("data.path", data_path="a") == "a"
    assert value("data.split", data_path="a") == "969,30,1"
    assert value("data.split", data_path="a", split="9/1") == "9,1,0"
    assert value("data.train_data_path", data_path="a") is None


def test_token_files_of_each_split(work, value):
    stated = {"train_data_paths": ["a", "b"], "train_data_weights": [1.0, 2.0], "valid_data_paths": ["c"]}
    stated |= {"test_data_paths": ["d", "e"], "split": "9,1"}
    assert value("data.train_data_path", **stated) == [{"weight": 1.0, "path": "a"}, {"weight": 2.0, "path": "b"}]
    assert value("data.valid_data_path", **stated) == "c"
    assert value("data.test_data_path", **stated) == [{"weight": 1.0, "path": "d"}, {"weight": 1.0, "path": "e"}]
    assert value("data.path", **stated) is None
    assert work("data.split", **stated).idle == (
        ("split", "train_data_paths, valid_data_paths and test_data_paths are not split"),
    )
    assert value("evaluation.interval", eval_interval=5, **stated) == 5


def test_as_many_weights_as_files(value):
    with pytest.raises(MigrateError, match="train_data_weights: 2 files need as many weights"):
        value("data.train_data_path", train_data_paths=["a", "b"], train_data_weights=[1.0])


# checkpoints and evaluation


def test_a_run_starts_from_a_folder_that_may_be_its_own(work):
    own = work("checkpoint.load", save="ckpt", load="./ckpt/")
    assert (own.value, own.note, own.idle) == ("./ckpt/", "", ())
    other = work("checkpoint.load", save="ckpt", load="other")
    assert (other.value, other.note) == ("other", "an error without a checkpoint; the source would start afresh")


def test_saving(work):
    assert work("checkpoint.save").value is False
    assert work("checkpoint.save", save="ckpt").value == "ckpt"
    assert work("checkpoint.save_interval", save="ckpt", checkpoint_factor=500.0).value == 500
    powers = work("checkpoint.save_interval", save="ckpt", checkpoint_factor=2, checkpoint_scale="log")
    assert (powers.value, powers.lost[0][0]) == (None, "checkpoint_factor")
    assert work("checkpoint.save_interval", checkpoint_factor=500).idle[0][0] == "checkpoint_factor"


def test_evaluation(value):
    assert (value("evaluation.interval"), value("evaluation.iters")) == (1000, 100)
    assert (value("evaluation.interval", eval_iters=0), value("evaluation.iters", eval_iters=0)) == (0, None)
