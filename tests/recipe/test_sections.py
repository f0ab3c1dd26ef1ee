"""Single keys: what their values may look like, and what follows from others."""

from __future__ import annotations

import re
from collections import OrderedDict

import pytest
from pydantic import ValidationError

from pretrain.recipe import make_recipe
from pretrain.recipe.recipe import Recipe, walk
from pretrain.recipe.section import shown
from pretrain.recipe.sections.outputs import CheckpointSection


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "1E-4"])
def test_a_number_may_be_written_as_yaml_reads_text(make, text):
    assert make(f"optimizer.lr={text}").optimizer.lr == 1e-4


@pytest.mark.parametrize("text", ["1000", "1_000", "1e3", "1.0e3", "'1_000'"])
def test_a_whole_number_may_be_written_with_exponent_and_underscores(make, text):
    assert make(f"train.train_iters={text}").train.train_iters == 1000


def test_a_whole_number_is_accepted_as_a_number(make):
    weight_decay = make("optimizer.weight_decay=0").optimizer.weight_decay
    assert (weight_decay, type(weight_decay)) == (0.0, float)


@pytest.mark.parametrize("text", ["abc", "1.5", "true", "[1]", "'1.5'", ".nan"])
def test_a_whole_number_is_nothing_else(refusal, text):
    assert "train.train_iters: " in refusal(f"train.train_iters={text}")
    assert refusal(f"train.train_iters={text}").endswith("is not a whole number.")


@pytest.mark.parametrize("text", ["fast", "true", ".nan", ".inf", "[1]", "1" + "0" * 400])
def test_a_number_is_finite_and_nothing_else(refusal, text):
    assert refusal(f"optimizer.lr={text}").endswith("is not a number.")


@pytest.mark.parametrize("text", ["1", "'true'", "3.0"])
def test_a_switch_is_true_or_false(refusal, text):
    assert refusal(f"model.parallel_residual={text}").endswith("is not true or false.")


def test_text_is_text(refusal):
    assert refusal("data.path=3").endswith("data.path: 3 is not text.")
    assert refusal("data.path=''").endswith("data.path: '' is not text that is not empty.")


PATHS = [
    path for path, field in walk(Recipe) if re.search(r"(path|(?<!pro)file|\.load|\.save|deepspeed_config)$", path)
]
LISTS = {"data.blend", "data.train_data_path", "data.valid_data_path", "data.test_data_path"}
STORED = {"data.path", "checkpoint.save", "checkpoint.load", *LISTS, *(f"{key}.path" for key in LISTS)}


def with_path(path, value):
    list_of = path.removesuffix(".path")
    return f"{list_of}=[{{weight: 1, path: {value}}}]" if list_of in LISTS else f"{path}={value}"


@pytest.mark.parametrize("path", PATHS)
def test_a_path_is_not_an_address_but_where_a_store_is_read_or_written(refusal, path):
    address = "az://bucket/x" if path in STORED else "s3://bucket/x"
    only = "s3://, gs:// and local files" if path in STORED else "local files"
    assert f"'{address}' is a URL; only {only} are read and written." in refusal(with_path(path, address))


@pytest.mark.parametrize("path", sorted(STORED.intersection(PATHS)))
@pytest.mark.parametrize("address", ["s3://", "s3:///x", "gs://bucket//x", "s3://bucket/../x"])
def test_an_address_has_a_bucket_and_no_empty_part(refusal, path, address):
    assert "is no address of a bucket and a name. Write " in refusal(with_path(path, address))


@pytest.mark.parametrize("path", sorted(each for each in STORED.intersection(PATHS) if each.startswith("data.")))
def test_token_files_are_not_a_bucket(refusal, path):
    assert "'s3://bucket' is no address of a bucket and a name. Write " in refusal(with_path(path, "s3://bucket"))


@pytest.mark.parametrize("path", PATHS)
def test_a_file_of_another_machine_is_refused(refusal, path):
    assert "Write file:///PATH, with three slashes" in refusal(with_path(path, "file://host/x"))


@pytest.mark.parametrize("key", ["save", "load"])
def test_an_address_loses_its_last_slash_and_a_file_its_scheme(key):
    assert getattr(CheckpointSection.model_validate({key: "S3://bucket/run/"}), key) == "s3://bucket/run"
    assert getattr(CheckpointSection.model_validate({key: "file:///data/run"}), key) == "/data/run"


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_token_file_is_named_without_its_suffixes(refusal, suffix):
    refused = refusal(f"data.path=data/x.{suffix}")
    assert refused.endswith("is one of the token file's two files. Leave the suffix out: data/x")


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("precision.dtype=off", "false (as YAML reads no and off) is not one of fp32, bf16 or fp16."),
        ("model.seq_length=yes", "true (as YAML reads yes and on) is not a whole number."),
        ("moe.num_experts=8", "unknown key: experts are keys of section model"),
        ("parallel.cp_comm_type=p2p", "It is not needed: the ranks that share a sequence gather keys and values"),
        ("wandb.project=x", "unknown key: loggers are keys of section logging: loggers: [wandb]"),
        ("extends=base.yml", "unknown key: only a recipe's file can extend another"),
    ],
)
def test_what_other_programs_and_yaml_make_of_a_key_is_answered(refusal, override, text):
    assert text in refusal(override)


def test_a_long_wrong_value_is_shortened(refusal):
    refused = refusal("train.train_iters=" + "x" * 10_000)
    assert refused.startswith("--set train.train_iters=...: train.train_iters: 'xxxx")
    assert len(refused) < 200
    assert refusal("data.path=[[1, 2, 3], [4]]").endswith("data.path: [[1, 2, 3], [4]] is not text.")


def test_a_choice_names_the_others(refusal):
    assert refusal("precision.dtype=fp8").endswith("precision.dtype: 'fp8' is not one of fp32, bf16 or fp16.")


def test_a_bound_is_named(refusal):
    assert refusal("model.num_layers=0").endswith("model.num_layers: 0 must be greater than 0.")
    assert refusal("model.hidden_dropout=1").endswith("model.hidden_dropout: 1.0 must be less than 1.")


@pytest.mark.parametrize("text", ["2 2 1000", "'2 2 1_000'", "[2, 2, 1000]"])
def test_a_rampup_is_a_list_or_megatrons_three_numbers(make, text):
    recipe = make(f"train.rampup_batch_size={text}", "train.train_samples=5000")
    assert recipe.train.rampup_batch_size == (2, 2, 1000)


def test_the_deepspeed_engine_splits_and_offloads_nothing_by_default(make):
    zero = make("engine.name=deepspeed").engine.zero
    assert (zero.stage, zero.offload_optimizer.device, zero.offload_param.device) == (0, "none", "none")


def test_a_size_in_elements_may_be_written_with_an_exponent(make):
    zero = make("engine={name: deepspeed, zero: {stage: 1, reduce_bucket_size: 2e8}}").engine.zero
    assert (zero.reduce_bucket_size, type(zero.reduce_bucket_size)) == (200_000_000, int)


def test_a_bucket_of_gathered_weights_is_even(refusal):
    zero = "engine={name: deepspeed, zero: {stage: 1, allgather_bucket_size: 3}}"
    assert refusal(zero).endswith("engine.zero.allgather_bucket_size: 3 must be even.")


@pytest.mark.parametrize(("given", "kept"), [("true", True), ("false", False), ("weights", "weights")])
def test_checkpoints_are_saved_in_the_run_or_elsewhere_or_not(make, given, kept):
    assert make(f"checkpoint.save={given}").checkpoint.save == kept


def test_checkpoints_cannot_be_saved_into_a_number(refusal):
    assert refusal("checkpoint.save=3").endswith("checkpoint.save: 3 is not true, false or a folder.")


def test_sizes_follow_from_the_width(make):
    model = make().model
    assert (model.ffn_hidden_size, model.num_query_groups, model.head_size) == (256, 4, 16)
    assert model.max_position_embeddings == 32


@pytest.mark.parametrize(("hidden_size", "ffn_hidden_size"), [(768, 2048), (4096, 10880), (16, 64)])
def test_swiglu_keeps_the_mlp_as_heavy_as_two_matrices(make, hidden_size, ffn_hidden_size):
    """8/3 h in multiples of 64, as Megatron-LM's arguments.py rounds it."""
    model = make(f"model.hidden_size={hidden_size}", "model.activation=swiglu").model
    assert model.ffn_hidden_size == ffn_hidden_size


def test_given_sizes_win(make):
    model = make("model.ffn_hidden_size=96", "model.num_query_groups=2", "model.kv_channels=24").model
    assert (model.ffn_hidden_size, model.num_query_groups, model.head_size) == (96, 2, 24)


def test_a_missing_width_is_reported_without_what_follows_from_it(refusal):
    assert refusal("model.hidden_size=null").splitlines() == [
        "--set model.hidden_size=null: model.hidden_size: required. Width of the residual stream."
    ]


def test_rope_rotates_a_part_of_each_head(make):
    recipe = make("model.position_embedding_type=rope", "model.rotary_percent=0.25", "model.kv_channels=96")
    assert recipe.model.rotary_size == 24
    assert make().model.rotary_size == 0


@pytest.mark.parametrize(
    ("vocab_size", "tensor_model_parallel_size", "padded"),
    [(50257, 1, 50304), (50257, 8, 51200), (50277, 2, 50432), (50304, 1, 50304), (257, 1, 384)],
)
def test_the_vocabulary_is_padded_to_equal_shares(make, vocab_size, tensor_model_parallel_size, padded):
    assert make().model.padded_vocab_size(vocab_size, tensor_model_parallel_size) == padded


def test_a_recipe_pads_for_its_own_layout(make):
    assert make("parallel.tensor_model_parallel_size=2").padded_vocab_size(300) == 512


def test_gradients_of_bf16_are_summed_in_fp32_by_default(make):
    assert make("precision.dtype=bf16").precision.grad_reduce_in_fp32
    assert not make("precision.dtype=fp16").precision.grad_reduce_in_fp32
    assert not make("precision={dtype: bf16, grad_reduce_in_fp32: false}").precision.grad_reduce_in_fp32


@pytest.mark.parametrize("split", ["949,50,1", " 949, 50 ,1", "94.9,5.0,0.1"])
def test_a_split_gives_shares_that_sum_to_one(make, split):
    assert make(f"data.split='{split}'").data.shares == pytest.approx((0.949, 0.05, 0.001))


def test_a_share_that_is_left_out_is_0_as_in_megatron(make):
    assert make("data.split='95,5'", "evaluation.interval=0").data.shares == (0.95, 0.05, 0.0)
    assert make("data.split=100", "evaluation.interval=0").data.shares == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("split", ["949,", "a,b,c", "-1,50,1", "949;50;1", "1,2,3,4"])
def test_a_split_is_up_to_three_numbers(refusal, split):
    assert refusal(f"data.split='{split}'").endswith("is not one to three numbers such as 949,50,1.")


def test_nothing_of_a_recipe_can_be_changed(make):
    with pytest.raises(ValidationError, match="frozen"):
        make().model.num_layers = 3


def test_two_recipes_of_the_same_run_are_equal(make, smallest):
    same = make_recipe({**smallest, "logging": {"log_interval": 100}}, source="elsewhere.yml")
    assert (make(), hash(make())) == (same, hash(same))
    assert make() != make("train.seed=1")


def test_long_texts_are_cut_in_the_middle():
    assert len(shown("a" * 1000)) < 70


def test_numbers_of_any_length_are_told():
    assert shown(12) == "12"
    assert shown(10**5000) == "a number of 16610 bits"


def test_dicts_that_hold_one_another_end():
    nested: OrderedDict = OrderedDict()
    for _ in range(40):
        nested = OrderedDict(a=nested, b=nested)
    assert len(shown(nested)) < 100
