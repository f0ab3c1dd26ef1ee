"""A command line is read as the program's own parser reads it."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.tools.migrate.parsing import parse, slip
from pretrain.tools.migrate.programs import Flag, Program, program
from pretrain.tools.migrate.setting import SourceLine, Word
from tools.migrate.command_words import words_of

FLAGS = (
    Flag("layers", ("--layers",), "int"),
    Flag("rate", ("--rate", "--lr"), "float", default=0.1),
    Flag("paths", ("--paths",), "str", nargs="*"),
    Flag("sizes", ("--sizes",), "int", nargs="+"),
    Flag("ramp", ("--ramp",), "int", nargs=3),
    Flag("style", ("--style",), "str", default="linear", choices=("linear", "cosine")),
    Flag("fused", ("--fused",), "switch", default=False, given=True),
    Flag("fused", ("--no-fused",), "switch", default=False, given=False),
    Flag("old", ("--old",), "int"),
)
SMALL = Program(
    name="megatron-lm-2.0",
    title="The program",
    dialect="megatron",
    flags={flag.name: flag for flag in reversed(FLAGS)},
    spelled={spelling: flag for flag in FLAGS for spelling in flag.spellings},
    refused=frozenset(("old",)),
)


def values(parsed):
    return {name: setting.value for name, setting in parsed.settings.items()}


def test_a_setting_has_its_value_its_flag_and_its_line():
    parsed = parse(words_of("--layers 24\n--lr=1.5e-4 --fused"), SMALL)
    assert values(parsed) == {"layers": 24, "rate": 1.5e-4, "fused": True}
    assert parsed.settings["rate"].written == "--lr"
    assert str(parsed.settings["rate"].place) == "train.sh:2"
    assert (parsed.problems, parsed.notices) == ([], [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--layers 10_000", {"layers": 10000}),
        ("--layers -3", {"layers": -3}),
        ("--rate -.5", {"rate": -0.5}),
        ("--paths", {"paths": []}),
        ("--paths 0.3 one 0.7 two --fused", {"paths": ["0.3", "one", "0.7", "two"], "fused": True}),
        ("--paths=one", {"paths": ["one"]}),
        ("--paths -", {"paths": ["-"]}),
        ("--sizes 1 2", {"sizes": [1, 2]}),
        ("--ramp 16 16 1000", {"ramp": [16, 16, 1000]}),
        ("--no-fused", {"fused": False}),
    ],
)
def test_values_are_what_argparse_makes_of_them(text, expected):
    parsed = parse(words_of(text), SMALL)
    assert values(parsed) == expected
    assert parsed.problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("\n--layers 1e3", "train.sh:2: --layers: '1e3' is not a whole number"),
        ("--rate fast", "train.sh:1: --rate: 'fast' is not a number"),
        ("--rate -1e-5", "train.sh:1: --rate: needs a value, but has none"),
        ("--layers", "train.sh:1: --layers: needs a value, but has none"),
        ("--layers --fused", "train.sh:1: --layers: needs a value, but has none"),
        ("--ramp 1 2", "train.sh:1: --ramp: needs 3 values, but has 2"),
        ("--ramp=1", "train.sh:1: --ramp: needs 3 values, but has 1"),
        ("--fused=yes", "train.sh:1: --fused: takes no value, but has 'yes'"),
        ("--style cosin", "train.sh:1: --style: 'cosin' is not one of linear, cosine. Did you mean 'cosine'?"),
        ("--fused true", "train.sh:1: 'true' belongs to no flag"),
        ("-- --fused", "train.sh:1: '--fused' belongs to no flag"),
    ],
)
def test_what_the_program_would_refuse_is_a_problem_with_its_line(text, problem):
    found = [each for each in parse(words_of(text), SMALL).problems if "-1e-5:" not in each]
    assert found == [problem]


def test_all_problems_are_found_at_once():
    assert len(parse(words_of("--layers x\n--fused=1\n--style z"), SMALL).problems) == 3


@pytest.mark.parametrize(
    ("text", "value"), [("--unknown 1 -x 2 --layers 3", "1 -x 2"), ("--unknown --layers 3", ""), ("--unknown $N", "$N")]
)
def test_an_unknown_flag_has_the_words_up_to_the_next_one(text, value):
    parsed = parse(words_of(text), SMALL)
    assert [(each.name, each.value, each.written) for each in parsed.unknown] == [("unknown", value, "--unknown")]
    assert parsed.problems == []
    assert values(parsed) == ({"layers": 3} if "--layers" in text else {})


def test_a_flag_of_another_version_is_read_and_named_with_that_version():
    parsed = parse(words_of("--data-impl mmap"), program("megatron-lm-core-0.12"))
    assert values(parsed) == {"data_impl": "mmap"}
    assert " ".join(parsed.notices) == (
        "train.sh:1: --data-impl: Megatron-LM core_v0.11 to v0.15 of February 2026 has no such flag; "
        "it is read as in Megatron-LM 23.08 of October 2023 (--from megatron-lm-23.08)"
    )


def test_a_flag_that_the_version_only_refuses_is_read_as_where_it_counts():
    parsed = parse(words_of("--batch-size 4"), program("megatron-lm-2.0"))
    assert values(parsed) == {"batch_size": 4}
    assert "ends with an error for it; it is read as in Megatron-LM of August 2020" in parsed.notices[0]


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("--num-layer", "--num-layers"),
        ("--hiden-size", "--hidden-size"),
        ("--seq-lenght", "--seq-length"),
        ("--use-fused-rmsnorm", ""),
        ("--use-fused-rotary-pos-emb", ""),
        ("--mup", ""),
        ("--lx", "--lr"),
    ],
)
def test_only_a_slip_gets_a_suggestion(written, near):
    found = slip(written, program("megatron-lm").spelled)
    assert found == (f" Did you mean '{near}'?" if near else "")


def test_a_later_value_wins_and_says_so():
    parsed = parse(words_of("--layers 2 --fused\n--layers 4\n--no-fused\n--rate 1 --rate 1"), SMALL)
    assert values(parsed) == {"layers": 4, "fused": False, "rate": 1.0}
    assert parsed.notices == [
        "train.sh:2: --layers 4 replaces --layers 2 of train.sh:1",
        "train.sh:3: --no-fused replaces --fused of train.sh:1",
    ]


def test_bool_of_argparse_takes_false_as_true():
    parsed = parse(words_of("--onnx-safe False"), program("megatron-lm-2.0"))
    assert values(parsed) == {"onnx_safe": True}
    assert "is true for the program" in parsed.notices[0]


class TestPrefixes:
    """Version 1.0 takes the beginning of a flag for the flag; later ones forbid it."""

    old = program("megatron-lm-1.0")

    def test_one_meaning_is_taken(self):
        parsed = parse(words_of("--vocab v.json --num-l=3"), self.old)
        assert values(parsed) == {"vocab_file": "v.json", "num_layers": 3}

    def test_several_meanings_are_a_problem(self):
        assert "--num is ambiguous: it can be short for --" in parse(words_of("--num 3"), self.old).problems[0]

    def test_later_versions_know_whole_flags_only(self):
        assert parse(words_of("--vocab v.json"), program("megatron-lm-2.0")).settings == {}


class TestUnknownValues:
    """A value that is not known makes its setting asked, and never a guess."""

    @pytest.mark.parametrize("text", ["--layers $N", "--layers 1$N", "--layers=$N", "--layers=1$N"])
    def test_of_one_setting(self, text):
        parsed = parse(words_of(text), SMALL)
        assert parsed.settings == {}
        assert [asked.name for asked in parsed.asked["layers"]] == ["N"]
        assert parsed.problems == []

    def test_of_a_list(self):
        parsed = parse(words_of("--paths one $TWO --fused"), SMALL)
        assert values(parsed) == {"fused": True}
        assert [asked.name for asked in parsed.asked["paths"]] == ["TWO"]

    @pytest.mark.parametrize("text", ["$ARGS", "--fused $ARGS", "--layers 1 $ARGS", "--fus$ARGS", "--$ARGS"])
    def test_where_a_flag_could_stand(self, text):
        parsed = parse(words_of(text), SMALL)
        assert [asked.name for asked in parsed.asked_flags] == ["ARGS"]
        assert parsed.asked == {}

    def test_a_later_value_replaces_an_unknown_one_and_the_other_way_round(self):
        assert values(parse(words_of("--layers $N --layers 3"), SMALL)) == {"layers": 3}
        parsed = parse(words_of("--layers 3\n--layers $N"), SMALL)
        assert parsed.settings == {}
        assert parsed.notices == ["train.sh:2: --layers, whose value is not known, replaces --layers 3 of train.sh:1"]


class RefusedError(Exception):
    pass


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RefusedError(message)


def parser():
    """Return argparse's own parser of the flags."""
    built = Parser(allow_abbrev=False, add_help=False)
    for flag in FLAGS:
        if flag.kind == "switch":
            action = "store_true" if flag.given else "store_false"
            built.add_argument(*flag.spellings, dest=flag.name, action=action, default=argparse.SUPPRESS)
        else:
            built.add_argument(
                *flag.spellings,
                dest=flag.name,
                nargs=flag.nargs,
                choices=flag.choices or None,
                type={"int": int, "float": float, "str": str}[flag.kind],
                default=argparse.SUPPRESS,
            )
    return built


PARTS = [spelling for flag in FLAGS if flag.name != "old" for spelling in flag.spellings]
PARTS += [
    "--layers=3",
    "--rate=-2",
    "--fused=1",
    "--unknown",
    "--lay",
    "3",
    "-4",
    "-.5",
    "1e3",
    "cosine",
    "-",
    "",
    "a b",
]


@given(st.lists(st.sampled_from(PARTS), max_size=8))
def test_argparse_says_the_same(texts):
    parsed = parse([Word(text, SourceLine("--args")) for text in texts], SMALL)
    try:
        expected = vars(parser().parse_args(texts))
    except RefusedError:
        assert parsed.problems or parsed.unknown
    else:
        assert values(parsed) == expected
        assert not parsed.problems
        assert not parsed.unknown
