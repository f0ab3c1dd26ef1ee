"""Values of YAML files and logs have the types of their flags, or are refused with their line."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.parsing import checked
from pretrain.tools.migrate.programs import program
from pretrain.tools.migrate.setting import Setting, SourceLine

NEWEST = program("megatron-lm")


def value_of(name, value, flags=NEWEST):
    return checked(Setting(name, value, name, SourceLine("gpt.yaml", 7)), flags).value


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_layers", 4, 4),
        ("num_layers", 4.0, 4),
        ("num_layers", None, None),
        ("lr", 1, 1.0),
        ("save", 2024, "2024"),
        ("bf16", True, True),
        ("data_path", ["0.3", "a"], ["0.3", "a"]),
        ("data_path", [0.3, "a"], ["0.3", "a"]),
        ("data_path", "0.3 a", ["0.3", "a"]),
        ("rampup_batch_size", [4, 4, 100], [4, 4, 100]),
        ("memory_snapshot_path", 3, 3),
        ("no_flag", "any", "any"),
    ],
)
def test_it_has_the_type_of_the_flag(name, value, expected):
    found = value_of(name, value)
    assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("num_layers", "4", "a whole number"),
        ("num_layers", 4.5, "a whole number"),
        ("num_layers", True, "a whole number"),
        ("num_layers", float("nan"), "a whole number"),
        ("lr", "1e-4", "a number"),
        ("bf16", "true", "true or false"),
        ("bf16", 1, "true or false"),
        ("save", ["a"], "a text"),
        ("save", False, "a text"),
        ("rampup_batch_size", [4, 4], r"a list of 3: \[\.\.\., \.\.\.\]"),
        ("rampup_batch_size", "4 4 100", r"a list of 3"),
        ("context_parallel_size", "2", "a whole number"),
    ],
)
def test_another_type_is_refused_with_its_line(name, value, kind):
    with pytest.raises(MigrateError, match=rf"^gpt\.yaml:7: {name}: .* is not {kind}"):
        value_of(name, value)


@pytest.mark.parametrize("name", ["num_layers", "lr", "save", "no_flag"])
def test_a_number_too_large_to_be_written_is_refused(name):
    with pytest.raises(MigrateError, match=rf"^gpt\.yaml:7: {name}: a number of \d+ bits is not a number of a sens"):
        value_of(name, 16**5000)


def test_it_is_refused_in_a_list_too():
    with pytest.raises(MigrateError, match="is not a number of a sensible size"):
        value_of("data_path", [16**5000])
