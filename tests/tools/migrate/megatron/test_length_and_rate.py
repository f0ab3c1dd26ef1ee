"""Lengths of a training, and the learning rate over them."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from tools.migrate.megatron.small_training import BATCH, FILES, SIZES, line_of, migrated

DEEPSPEED = {"program": "megatron-deepspeed"}


def schedule_of(arguments, **wishes):
    return migrated(arguments, **wishes).recipe.schedule


@pytest.mark.parametrize("length", ["--train-iters 1000", "--train-samples 8000"])
def test_tokens_that_end_a_training_leave_its_decay_as_long_as_it_was(length):
    found = migrated(f"{length} --train-tokens 64000 --lr-warmup-fraction 0.1", **DEEPSPEED)
    assert found.recipe.train.train_samples == 2000
    assert found.recipe.schedule.lr_decay_samples == 8000
    assert found.recipe.schedule.lr_warmup_fraction == 0.1
    assert line_of(found, length.split()[0]) == ("carried over", "schedule.lr_decay_samples")


def test_a_step_is_begun_as_long_as_tokens_are_left():
    assert migrated("--train-samples 8000 --train-tokens 64001", **DEEPSPEED).recipe.train.train_samples == 2008


def test_a_decay_that_is_stated_stays():
    found = migrated("--train-iters 1000 --train-tokens 64000 --lr-decay-iters 500", **DEEPSPEED)
    assert found.recipe.schedule.lr_decay_samples == 4000
    assert line_of(found, "--train-iters") == ("no effect", "--train-tokens ends the training earlier")


def test_tokens_that_come_last_have_no_effect():
    found = migrated("--train-iters 10 --train-tokens 64000", **DEEPSPEED)
    assert found.recipe.train.train_iters == 10
    assert line_of(found, "--train-tokens") == ("no effect", "the iterations end before the tokens do")


def test_a_fraction_is_of_the_steps_where_the_decay_ends_by_tokens():
    arguments = "--train-samples 8000 --lr-decay-tokens 64000 --lr-warmup-fraction 0.1"
    schedule = schedule_of(arguments, **DEEPSPEED)
    assert (schedule.lr_decay_samples, schedule.lr_warmup_samples, schedule.lr_warmup_fraction) == (2000, 800, None)


def test_a_warm_up_in_tokens_does_not_move_the_start_of_a_decay_by_steps():
    found = migrated("--train-samples 8000 --lr-warmup-tokens 3200", **DEEPSPEED)
    assert found.recipe.schedule.lr_warmup_samples == 100
    assert line_of(found, "--lr-warmup-tokens")[0] == "not supported"


OLD = f"{SIZES} --batch-size 2 {FILES} --data-path d --train-iters 100"


@pytest.mark.parametrize("version", ["1.0", "2020.08"])
@pytest.mark.parametrize(
    ("style", "ours", "fate"),
    [
        ("constant", "constant", "carried over"),
        ("cosine", "cosine", "not supported"),
        ("exponential", "linear", "not supported"),
    ],
)
def test_the_rate_of_versions_before_2_falls_by_another_formula(version, style, ours, fate):
    program = f"megatron-lm-{version}"
    found = migrated(f"--lr-decay-style {style}", common=OLD, program=program, devices=1)
    assert found.recipe.schedule.lr_decay_style == ours
    assert line_of(found, "--lr-decay-style")[0] == fate


def test_their_default_is_lost_too():
    found = migrated("", common=OLD, program="megatron-lm-1.0", devices=1)
    assert line_of(found, "--lr-decay-style")[0] == "not supported"


def test_the_rate_of_later_versions_is_ours():
    assert line_of(migrated("--train-iters 9 --lr-decay-style cosine"), "--lr-decay-style")[0] == "carried over"


@pytest.mark.parametrize("numbers", ["4 4", "4 4 x", "4 4 100 1"])
def test_a_growing_batch_needs_three_numbers(numbers):
    with pytest.raises(MigrateError, match=r"--args: .*(--rampup-batch-size|belongs to no flag)"):
        migrated(f"--train-samples 800 --rampup-batch-size {numbers}", program="megatron-lm-2.5")


def test_iterations_that_are_left_out_are_numbered_from_1():
    found = migrated("--train-iters 9 --iterations-to-skip 0 6")
    assert found.recipe.train.iterations_to_skip == (1, 7)
    assert line_of(found, "--iterations-to-skip") == ("carried over", "train.iterations_to_skip")


def test_training_text_alone_leaves_no_validation():
    common = f"{SIZES} {BATCH} {FILES}"
    found = migrated("--train-data-path d --train-iters 9 --eval-interval 5 --split 9,1,0", common=common)
    assert ([part.path for part in found.recipe.data.train_data_path], found.recipe.evaluation.interval) == (["d"], 0)
    assert line_of(found, "--split") == ("no effect", "it cuts the files of --data-path alone")
    assert line_of(found, "--eval-interval")[0] == "no effect"


def test_without_an_interval_nothing_is_evaluated():
    assert migrated("--train-iters 9", program="megatron-lm-2026.08").recipe.evaluation.interval == 0
    assert migrated("--train-iters 9", program="megatron-lm-core-0.15").recipe.evaluation.interval == 1000


@pytest.mark.parametrize(
    ("written", "split"), [("9/1/0", "9,1,0"), ("98,2", "98,2,0"), ("100", "100,0,0"), ("\"'99, 1,0'\"", "99,1,0")]
)
def test_a_split_is_three_numbers_however_it_is_written(written, split):
    assert migrated(f"--train-iters 9 --split {written}").recipe.data.split == split


AWARE = "--train-iters 10 --use-precision-aware-optimizer --use-distributed-optimizer"


def dtypes_of(arguments):
    found = migrated(f"{AWARE} {arguments}")
    section = found.recipe.optimizer
    return (section.exp_avg_dtype, section.exp_avg_sq_dtype), found


def test_the_state_of_adam_is_kept_as_there():
    both = "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --adam-beta2 0.95"
    dtypes, found = dtypes_of(both)
    assert dtypes == ("bf16", "bf16")
    assert {each.note for each in found.outcomes if each.written in {"--exp-avg-dtype", "--exp-avg-sq-dtype"}} == {""}
    assert dtypes_of("--exp-avg-dtype bf16")[0] == ("bf16", "fp32")
    found = migrated(f"--train-iters 10 {both}")
    assert found.recipe.optimizer.exp_avg_dtype == "fp32"
    assert line_of(found, "--exp-avg-dtype") == ("no effect", "it belongs to use_precision_aware_optimizer")


@pytest.mark.parametrize(
    ("flags", "flag", "why"),
    [
        ("--exp-avg-dtype fp8", "--exp-avg-dtype", "fp8 would need scales"),
        ("--exp-avg-sq-dtype fp16", "--exp-avg-sq-dtype", "fp16 would need scales"),
        ("--exp-avg-sq-dtype bf16", "--exp-avg-sq-dtype", "with adam_beta2 0.999 one in bf16 would never fall"),
    ],
)
def test_a_state_that_cannot_be_kept_so_is_fp32_and_that_is_said(flags, flag, why):
    dtypes, found = dtypes_of(flags)
    assert dtypes == ("fp32", "fp32")
    fate, text = line_of(found, flag)
    assert (fate, why in text) == ("not supported", True)


def test_embedding_and_output_layer_keep_their_rate():
    found = migrated("--train-iters 10 --lr 1e-3 --decoupled-lr 2e-3 --decoupled-min-lr 1e-4").recipe
    assert (found.optimizer.decoupled_lr, found.schedule.decoupled_min_lr) == (2e-3, 1e-4)
