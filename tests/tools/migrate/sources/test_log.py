"""The arguments in a log: the first list of them, whatever stands before its lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.log import has_arguments, read_log, value_of

VALUES = {"bf16": True, "lr": 0.00015, "data_path": ["a", "b"], "split": "949,50,1", "load": None, "comment": ""}


def entries(values, width=48):
    return [f"  {name} {'.' * (width - len(name))} {value}" for name, value in values.items()]


def dump(values, prefix="", dashes=24):
    title, end = "-" * dashes + " arguments " + "-" * dashes, "-" * 20 + " end of arguments " + "-" * 21
    return "\n".join(prefix + line for line in [title, *entries(values), end])


def read(text):
    return read_log("train.log", text)


def values_of(source):
    return {name: setting.value for name, setting in source.settings.items()}


@pytest.mark.parametrize("prefix", ["", "[default0]:", "0: ", "worker-0: ", "2023-07-16 10:56:55 "])
def test_values_are_read_with_their_lines(prefix):
    source = read("started\n" + dump(VALUES, prefix) + "\niteration 1")
    assert values_of(source) == VALUES
    assert str(source.settings["lr"].place) == "train.log:4"
    assert (source.kind, source.program, source.notices) == ("log", "", ())


def test_the_time_of_a_line_may_differ():
    lines = dump({"lr": 0.1, "seed": 1}, "10:56:55 ").split("\n")
    assert values_of(read("\n".join([*lines[:2], *(line.replace("56:55", "57:01") for line in lines[2:])]))) == {
        "lr": 0.1,
        "seed": 1,
    }


def test_lines_of_other_ranks_are_skipped_and_others_reported():
    title, *rest = dump({"lr": 0.1}, "[default0]:").split("\n")
    source = read("\n".join([title, "[default1]:warning", "[default0]:a warning", *rest]))
    assert values_of(source) == {"lr": 0.1}
    assert source.notices == ("train.log:3: not an argument, so it is ignored: a warning",)


def test_long_names_have_no_dots():
    name = "x" * 50
    assert values_of(read(dump({name: 3, "y" * 47: 4}))) == {name: 3, "y" * 47: 4}


def test_the_first_list_counts_and_other_values_later_are_reported():
    source = read("\n".join([dump({"lr": 0.1, "rank": 0}), dump({"lr": 0.2, "rank": 0})]))
    assert values_of(source)["lr"] == 0.1
    (notice,) = source.notices
    assert (
        notice == "train.log:5: this second list of arguments has other values of lr; only the list in line 1 is read"
    )
    assert read("\n".join([dump(VALUES)] * 2)).notices == ()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (dump({"lr": 0.1}).rpartition("\n")[0], "train.log:1: the list of arguments here has no end"),
        (dump({}), "train.log:1: the list of arguments here is empty"),
        (dump({"lr": 0.1}).replace("----\n", "----\n  lr .... 3\n", 1), "train.log:3: lr is listed twice"),
    ],
)
def test_it_refuses(text, what):
    with pytest.raises(MigrateError) as error:
        read(text)
    assert what in str(error.value)


def neox(name, value, origin):
    shown = f"  {name} {'.' * (32 - len(name))} {value}"
    return shown + "." * (64 - len(shown)) + origin


def test_gpt_neox_writes_where_a_value_comes_from():
    lines = [
        neox("attention_config", ["global"] * 12, "updated"),
        neox("optimizer", {"type": "Adam"}, "updated"),
        neox("lr", 0.001, "updated"),
        neox("save", "./runs/", "default"),
        neox("comment", "", "default"),
        neox("rank", 0, ""),
    ]
    source = read("\n".join(["-" * 20 + " arguments " + "-" * 20, *lines, "-" * 16 + " end of arguments " + "-" * 16]))
    assert source.program == "train.py"
    assert values_of(source) == {
        "attention_config": ["global"] * 12,
        "optimizer": {"type": "Adam"},
        "lr": 0.001,
        "save": "./runs/",
        "comment": "",
        "rank": 0,
    }


def test_a_log_is_recognized_by_the_title():
    assert has_arguments("a\n[default0]:" + "-" * 24 + " arguments " + "-" * 24 + "\n")
    assert not has_arguments("# --- arguments ---\npython x.py")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24),
        ("1e-05", 1e-05),
        ("True", True),
        ("None", None),
        ("['0.3', 'a', '0.7', 'b']", ["0.3", "a", "0.7", "b"]),
        ("{'lr': 0.1}", {"lr": 0.1}),
        ("inf", float("inf")),
        ("torch.float16", "fp16"),
        ("torch.bfloat16", "bf16"),
        ("AttnBackend.flash", "flash"),
        ("<AttnBackend.auto: 5>", "auto"),
        ("[<CudaGraphScope.attn: 2>, <CudaGraphScope.mlp: 3>]", ["attn", "mlp"]),
    ],
)
def test_value(text, value):
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "949,50,1",
        "10_000",
        "1.0e-5",
        "007",
        "cosine",
        "",
        "data/x",
        "Vocab.json",
        "(1, 2)",
        "b'x'",
        "[1,2]",
        "'a'",
        "<f>",
    ],
)
def test_text_stays(text):
    assert value_of(text) == text


@given(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.lists(st.integers() | st.text()))
def test_whatever_a_program_shows_is_read_back(value):
    assert value_of(str(value)) == value


@given(st.text(max_size=12))
def test_no_text_is_changed_beyond_its_type(text):
    value = value_of(text)
    assert str(value) == text or text.startswith(("torch.", "<", "[<"))
