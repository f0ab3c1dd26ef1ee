"""The flags of the programs' versions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.programs import (
    FAMILIES,
    VERSIONS,
    Flag,
    family_of,
    file_of,
    program,
    programs,
    read_row,
    read_rows,
)
from tools.migrate.programs.flag_rows import COLUMNS, written_row

IMPLEMENTATIONS = ("local", "transformer_engine", "inference_optimized")
FLAGS = {
    ("megatron-lm-1.0", "warmup"): Flag("warmup", ("--warmup",), "float", default=0.01),
    ("megatron-lm-23.04", "DDP_impl"): Flag(
        "DDP_impl", ("--DDP-impl",), "str", default="local", choices=("local", "torch")
    ),
    ("megatron-lm-core-0.5", "transformer_impl"): Flag(
        "transformer_impl", ("--transformer-impl",), "str", default="local", choices=IMPLEMENTATIONS
    ),
    ("megatron-lm-core-0.6", "transformer_impl"): Flag(
        "transformer_impl", ("--transformer-impl",), "str", default="transformer_engine", choices=IMPLEMENTATIONS
    ),
    ("megatron-lm-2023.07", "bias_gelu_fusion"): Flag(
        "bias_gelu_fusion", ("--no-bias-gelu-fusion",), "switch", default=True, given=False
    ),
    ("megatron-deepspeed-2023.11", "num_experts"): Flag(
        "num_experts", ("--num-experts",), "int", default=[1], nargs="+"
    ),
    ("bigscience-megatron-deepspeed", "deepspeed_config"): Flag("deepspeed_config", ("--deepspeed_config",), "str"),
    ("gpt-neox-2.0", "weight_decay"): Flag("weight_decay", ("weight-decay", "weight_decay"), "float", default=0.01),
    ("gpt-neox", "weight_decay"): Flag("weight_decay", ("weight-decay", "weight_decay"), "float", default=0.1),
    ("gpt-neox-2023.10", "hidden_dropout"): Flag("hidden_dropout", ("hidden-dropout", "hidden_dropout"), "float", 0.1),
    ("gpt-neox-2024.02", "hidden_dropout"): Flag("hidden_dropout", ("hidden-dropout", "hidden_dropout"), "float", 0.0),
    ("gpt-neox-2024.08", "mlp_type"): Flag("mlp_type", ("mlp-type", "mlp_type"), "str", "regular"),
    ("gpt-neox", "fp16"): Flag("fp16", ("fp16",), "object"),
}


@pytest.mark.parametrize(("name", "flag"), FLAGS)
def test_flags_are_those_of_the_version(name, flag):
    assert program(name).flags[flag] == FLAGS[name, flag]


def test_the_tokenizer_is_the_one_that_the_script_passes_as_default():
    types = {each.flags["tokenizer_type"].default for each in programs().values() if each.dialect == "megatron"}
    assert types == {"GPT2BPETokenizer"}


def test_flags_that_a_version_only_refuses_are_told():
    assert program("megatron-lm-1.0").refused == frozenset()
    assert "batch_size" in program("megatron-deepspeed").refused
    assert "checkpoint_activations" in program("megatron-lm-23.04").refused
    assert "checkpoint_activations" not in program("megatron-deepspeed").refused


def test_refused_flags_exist():
    assert all(each.refused <= each.flags.keys() for each in programs().values())


def test_every_program_has_flags_and_a_title_of_its_own():
    assert len({each.title for each in programs().values()}) == len(VERSIONS)
    assert min(len(each.flags) for each in programs().values()) > 60


def test_a_family_stands_for_its_newest_version():
    assert {family: program(family).name for family in FAMILIES} == {
        "megatron-lm": "megatron-lm-2026.08",
        "megatron-deepspeed": "megatron-deepspeed-2025.07",
        "bigscience-megatron-deepspeed": "bigscience-megatron-deepspeed-2023.12",
        "mindspeed-llm": "mindspeed-llm-2026.08",
        "gpt-neox": "gpt-neox-2026.05",
    }
    assert (family_of("gpt-neox-2.0")[0], family_of("gpt-neox")[-1]) == (program("gpt-neox-2.0"), program("gpt-neox"))


def test_an_unknown_name_gets_a_suggestion():
    assert program("megatron-lm-core-0.12") is program("megatron-lm-core-0.15")  # with the same defaults
    with pytest.raises(MigrateError, match=r"no such program. Did you mean 'megatron-lm-core-0.12'\?"):
        program("megatron-lm-core-012")


@pytest.mark.parametrize("dialect", ["megatron", "neox"])
def test_the_table_is_as_its_writer_writes_it(dialect):
    rows = list(read_rows(dialect))
    assert [read_row(written_row(row)) for row in rows] == rows
    assert sorted(rows, key=lambda row: row.flag.name) == rows
    assert len({written_row(row) for row in rows}) == len(rows)
    assert (file_of(dialect), len(COLUMNS)) == (f"{dialect}_flags.tsv", 8)


def test_no_spelling_has_two_flags_in_one_version():
    for each in programs().values():
        assert all(spelling in flag.spellings for spelling, flag in each.spelled.items())
        assert {flag.name for flag in each.spelled.values()} == each.flags.keys()


def test_reading_needs_no_torch():
    code = "import sys; from pretrain.tools.migrate.programs import programs; programs(); print('torch' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
