"""A command line is taken for the newest version that has all its flags."""

from __future__ import annotations

import re

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.programs import program
from pretrain.tools.migrate.version_choice import (
    choose,
    choose_for_keys,
    choose_for_log,
    differing_defaults,
    doubts,
)
from tools.migrate.command_words import words_of


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("--num-layers 2 --micro-batch-size 1", "megatron-lm-2026.08"),
        ("--num-layers 2 --use-fused-rmsnorm --swap-attention", "mindspeed-llm-2026.08"),
        ("--num-layers 2 --data-impl mmap", "megatron-lm-23.08"),
        ("--micro-batch-size 1 --checkpoint-activations", "megatron-lm-2022.03"),
        ("--batch-size 8 --model-parallel-size 2 --warmup .01", "megatron-lm-2020.08"),
        ("--micro-batch-size 1 --zero-stage 1", "megatron-deepspeed-2025.07"),
        ("--deepspeed --deepspeed_config ds.json", "megatron-deepspeed-2025.07"),
        ("--deepspeed --checkpoint-activations --use-flash-attn-v2", "megatron-deepspeed-2025.07"),
        ("--deepspeed --use-checkpoint-lr-scheduler", "megatron-deepspeed-2022"),
        ("--deepspeed --kill-switch-path stop --embed-layernorm", "bigscience-megatron-deepspeed-2023.12"),
    ],
)
def test_the_flags_tell_the_version(text, name):
    assert choose(words_of(text)).program.name == name


def test_the_reason_names_the_flag_that_newer_versions_lack():
    assert choose(words_of("--data-impl mmap --num-layers 2")).why == (
        "Megatron-LM 23.08 of October 2023, the newest version that takes --data-impl"
    )
    assert (
        choose(words_of("--seed 1")).why
        == "Megatron-LM core_v0.16 and later, of August 2026, the newest version, which takes all the flags"
    )


def test_an_unknown_flag_is_named_and_does_not_change_the_family():
    choice = choose(words_of("--data-impl mmap --our-own 1"))
    assert choice.program.name == "megatron-lm-23.08"
    assert choice.unknown == ("--our-own",)
    assert choice.why.endswith("which takes most of the flags, but not --our-own")


def test_a_flag_of_which_only_the_beginning_is_known_tells_no_version():
    assert choose(words_of("--data-impl mmap --moe-permute-fusion")).unknown == ()


def test_a_short_flag_is_unknown_too():
    choice = choose(words_of("--seed 1 -x 3"))
    assert (choice.unknown, choice.why.endswith("not -x")) == (("-x",), True)


def test_the_script_tells_the_age():
    choice = choose(words_of("--num-layers 2"), script="pretrain_gpt2.py")
    assert choice.program.name == "megatron-lm-2020.08"
    assert choice.why.endswith("the newest version with pretrain_gpt2.py that takes all the flags")
    assert [each.name for each in choice.others] == ["megatron-lm-1.0"]


def test_flags_tell_more_than_the_script():
    words = words_of("--tensor-model-parallel-size 2 --checkpoint-activations")
    assert choose(words, script="pretrain_gpt2.py").program.name == "megatron-lm-2022.03"


class TestHint:
    """--from chooses the version, or the family of which the newest fitting one is taken."""

    def test_version(self):
        choice = choose(words_of("--data-impl mmap"), hint="megatron-lm-core-0.12")
        assert choice.program.name == "megatron-lm-core-0.15"
        assert choice.unknown == ("--data-impl",)
        assert choice.why == (
            "Megatron-LM core_v0.11 to v0.15 of February 2026, as --from megatron-lm-core-0.12 says, "
            "though it does not take --data-impl"
        )

    def test_family(self):
        assert choose(words_of("--data-impl mmap"), hint="megatron-lm").program.name == "megatron-lm-23.08"
        assert choose(words_of("--seed 1"), hint="megatron-deepspeed").program.name == "megatron-deepspeed-2025.07"

    def test_unknown(self):
        with pytest.raises(MigrateError, match="Did you mean 'megatron-lm'"):
            choose(words_of("--seed 1"), hint="megatron_lm")

    def test_of_other_settings(self):
        with pytest.raises(MigrateError, match="Give one of gpt-neox, or leave --from out"):
            choose_for_keys(["num_layers"], hint="megatron-lm")


def test_values_that_are_not_known_do_not_count():
    assert choose(words_of("$ARGS --$X --seed=$SEED")).unknown == ()


def test_others_are_the_versions_of_the_family_that_would_do_too():
    choice = choose(words_of("--data-impl mmap --swiglu"))
    assert [each.name for each in choice.others] == ["megatron-lm-2023.07", "megatron-lm-23.06"]


def test_either_megatron_deepspeed_may_be_meant_where_both_take_all_flags():
    choice = choose(words_of("--deepspeed --zero-stage 1 --checkpoint-activations"))
    assert choice.program is program("megatron-deepspeed")
    assert program("bigscience-megatron-deepspeed") in choice.others
    assert choose(words_of("--deepspeed --embed-layernorm")).why == (
        "BigScience's Megatron-DeepSpeed of December 2023, the newest version that takes --embed-layernorm"
    )


def test_defaults_that_differ_are_told_unless_they_are_stated():
    new, old = program("megatron-lm-23.08"), program("megatron-lm-2023.07")
    assert differing_defaults(new, [old], []) == {"recompute_num_layers": [(old, 1)]}
    assert differing_defaults(new, [old], ["recompute_num_layers"]) == {}


def test_a_notice_on_defaults_has_the_flags_as_they_are_spelled():
    (line,) = doubts(choose(words_of("--data-impl mmap --swiglu")), {})
    assert re.search(r"--[a-z-]+ is \S.* by default", line)
    assert re.search(r"and 1 others|\b[a-z]+_[a-z_]+ is ", line) is None


def test_a_log_of_all_arguments_is_of_the_version_with_the_nearest_flags():
    names = {*program("megatron-lm-core-0.10").flags, "world_size", "padded_vocab_size"}
    choice = choose_for_log(names)
    assert choice.program.name == "megatron-lm-core-0.10"
    assert choice.unknown == ("padded_vocab_size", "world_size")


@pytest.mark.parametrize(("key", "name"), [("gas", "gpt-neox-2023.10"), ("rope-fusion", "gpt-neox-2026.05")])
def test_keys_tell_the_version_of_gpt_neox(key, name):
    assert choose_for_keys(["num-layers", "hidden_size", key]).program.name == name
