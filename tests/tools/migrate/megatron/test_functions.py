"""Functions: the settings that they read, and odd values of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate import megatron
from pretrain.tools.migrate.megatron.meanings import READ_BY_FUNCTIONS
from pretrain.tools.migrate.programs import programs
from pretrain.tools.migrate.setting import Setting, Settings, SourceLine
from pretrain.tools.migrate.translation import dialect_of, translate

OF_MEGATRON = [program for program in programs().values() if program.dialect == "megatron"]
FLAGS = {name for program in OF_MEGATRON for name in program.flags}

NAMED = {
    *("zero_contigious_gradients", "zero_reduce_bucket_size", "zero_allgather_bucket_size", "zero_reduce_scatter"),
    *("start_weight_decay", "squared_relu", "deprecated_use_mcore_models", "gelu_tanh"),
}
"""Flags of which a function only says that they have no effect, or looks whether the version has them; and a value."""


def _texts() -> set[str]:
    """Return all texts of the modules that work values out."""
    files = Path(megatron.__file__).parent.glob("*.py")
    trees = [ast.parse(file.read_text()) for file in files if file.name != "meanings.py"]
    read = (node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef) or _is_of_names(node))
    nodes = (node for part in read for node in ast.walk(part))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _is_of_names(node: ast.stmt) -> bool:
    """Say whether a statement keeps names for functions, or hands some to them."""
    is_table = isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "FUNCTIONS"
    return is_table or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.Constant))


def test_every_setting_that_a_function_reads_is_asked_for_where_it_is_not_known():
    read = (_texts() & FLAGS) - NAMED
    unknown = {name for name in read for program in OF_MEGATRON if name in program.flags and not _needs(program, name)}
    assert unknown == set()
    assert read >= READ_BY_FUNCTIONS


def _needs(program, name):
    return dialect_of(program).needs(name)


ODD = {
    "int": [0, -1, 1, 3, 2**62],
    "float": [0.0, -1.0, 0.5, 1e308, float("nan"), float("inf")],
    "bool": [True, False],
    "switch": [True, False],
    "pattern": [0, "["],
    "object": [{}],
}
TEXTS = ["", "x", "0", "|", "m*3", "(", "E|t", ",,", "1e999"]


@st.composite
def odd_settings(draw) -> Settings:
    """Settings of any version, some with odd values of their types."""
    program = draw(st.sampled_from(OF_MEGATRON))
    names = [name for name in sorted(program.flags) if _needs(program, name)]
    stated = {}
    for name in draw(st.lists(st.sampled_from(names), max_size=20, unique=True)):
        flag = program.flags[name]
        one = st.sampled_from(ODD.get(flag.kind, TEXTS))
        value = draw(one if flag.nargs in {None, "?"} else st.lists(one, max_size=4))
        stated[name] = Setting(name, value, flag.spellings[0], SourceLine("train.sh", 3))
    return Settings(program, stated, draw(st.sampled_from([None, 0, 4])))


@given(odd_settings())
def test_odd_values_are_worked_out_or_refused(odd):
    try:
        translated = translate(odd, dialect_of(odd.program))
    except MigrateError:
        return
    said = {outcome.written for outcome in translated.outcomes}
    assert {setting.written for setting in odd.stated.values() if setting.value is not None} <= said


@pytest.mark.parametrize("name", sorted(READ_BY_FUNCTIONS))
def test_what_is_read_beside_the_keys_is_a_flag(name):
    assert name in FLAGS
