"""Keys of a DeepSpeed file: every one has one line, and those that DeepSpeed reads win over the flags."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pretrain.errors import MigrateError
from tools.migrate.megatron.small_training import line_of, migrated

ITERATIONS = "--train-iters 10 --deepspeed_config ds.json"


@pytest.fixture
def found(tmp_path, monkeypatch):
    """Return a function from a file's content and more arguments to the migration."""
    monkeypatch.chdir(tmp_path)

    def one(content, arguments="--deepspeed", devices=2, **wishes):
        (tmp_path / "ds.json").write_text(json.dumps(content, indent=1))
        return migrated(f"{ITERATIONS} {arguments}", program="megatron-deepspeed", devices=devices, **wishes)

    return one


def test_without_the_switch_every_key_has_a_line(found):
    content = {"train_batch_size": 4, "optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 3}}
    lines = found(content, "")
    for key in ("train_batch_size", "optimizer.type", "zero_optimization.stage"):
        fate, why = line_of(lines, key)
        assert (fate, why.partition(" (")[0]) == ("no effect", "without --deepspeed the program does not read it")
    assert lines.recipe.engine.name == "megatron"


def test_no_key_stands_in_two_lists(found):
    content = {
        "bfloat16": {"enabled": True},
        "fp16": {"enabled": False},
        "zero_optimization": {"stage": 1.0, "cpu_offload": False, "reduce_bucket_size": 2e8},
        "data_types": {"grad_accum_dtype": "bf16"},
        "communication_data_type": "bf16",
        "tensorboard": {"enabled": False},
        "steps_per_print": 5,
        "prescale_gradients": None,
    }
    lines = found(content, "--deepspeed --bf16")
    counted = Counter(outcome.written for outcome in lines.outcomes)
    assert [name for name, count in counted.items() if count > 1] == []
    assert line_of(lines, "data_types.grad_accum_dtype")[0] == "carried over"
    assert line_of(lines, "prescale_gradients") == ("no effect", "null counts as not given")


@pytest.mark.parametrize(("more", "expected"), [({}, False), ({"data_types": {"grad_accum_dtype": "fp32"}}, True)])
def test_the_file_says_in_which_dtype_gradients_are_summed(found, more, expected):
    flags = "--deepspeed --bf16 --accumulate-allreduce-grads-in-fp32"
    lines = found({"bf16": {"enabled": True}, "zero_optimization": {"stage": 1}, **more}, flags)
    assert lines.recipe.precision.grad_reduce_in_fp32 in ({True, None} if expected else {False})
    assert line_of(lines, "--accumulate-allreduce-grads-in-fp32")[0] == "no effect"


def test_the_flag_does_not_make_deepspeed_sum_fp16_in_fp32(found):
    flags = "--deepspeed --fp16 --accumulate-allreduce-grads-in-fp32"
    lines = found({"fp16": {"enabled": True}, "zero_optimization": {"stage": 1}}, flags)
    assert lines.recipe.precision.grad_reduce_in_fp32 is not True


def test_megatron_makes_the_optimizer_and_sets_recomputation_up(found):
    content = {"optimizer": {"type": "Lion"}, "activation_checkpointing": {"partition_activations": True}}
    lines = found(content)
    assert "makes the optimizer itself" in line_of(lines, "optimizer.type")[1]
    assert "has flags for it" in line_of(lines, "activation_checkpointing.partition_activations")[1]


def test_a_schedule_of_the_file_is_lost_where_an_older_deepspeed_takes_it(found):
    lines = found({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})
    assert line_of(lines, "scheduler.type")[0] == "not supported"
    assert line_of(lines, "scheduler.params.warmup_num_steps") == ("no effect", "it belongs to scheduler.type")


def test_a_block_that_is_off_is_lost_by_nobody(found):
    lines = found({"elasticity": {"enabled": False}, "curriculum_learning": {"enabled": True}})
    assert line_of(lines, "elasticity") == ("no effect", "it is not enabled")
    fate, change = line_of(lines, "curriculum_learning")
    assert (fate, "every sequence has model.seq_length tokens" in change) == ("not supported", True)


@pytest.mark.parametrize("stage", ["x", 1.5, 7, True])
def test_a_stage_that_zero_does_not_have_is_refused_with_its_line(found, stage):
    with pytest.raises(MigrateError, match=r"ds\.json:3: zero_optimization\.stage"):
        found({"zero_optimization": {"stage": stage}})


def test_one_point_zero_is_stage_one(found):
    assert found({"zero_optimization": {"stage": 1.0}}).recipe.engine.zero.stage == 1


@pytest.mark.parametrize(
    ("devices", "steps", "expected"),
    [
        (2, 2, ("carried over", "train.global_batch_size (2 x 2 x 2 replicas)")),
        (None, 3, ("no effect", "it follows from the two batch sizes and the number of devices")),
    ],
)
def test_the_micro_batches_of_a_step_have_a_line(found, devices, steps, expected):
    lines = found({"gradient_accumulation_steps": steps}, devices=devices)
    assert line_of(lines, "gradient_accumulation_steps") == expected


def test_other_micro_batches_than_the_flags_have_are_refused_with_both_places(found):
    with pytest.raises(MigrateError, match=r"ds\.json:2: .*3 micro batches of 2 on 2.*--global-batch-size \(--args\)"):
        found({"gradient_accumulation_steps": 3})


def test_two_keys_that_say_one_thing_differently_are_refused_with_both_lines(found):
    content = {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 5, "stage3_prefetch_bucket_size": 6}}
    with pytest.raises(MigrateError, match=r"ds\.json:5: .*\n?.*ds\.json:4 says 5"):
        found(content)


def test_an_error_of_the_recipe_names_the_line_of_the_file(found):
    with pytest.raises(MigrateError, match=r"ds\.json:3.*reduce_bucket_size"):
        found({"zero_optimization": {"reduce_bucket_size": -5, "stage": 2}})
