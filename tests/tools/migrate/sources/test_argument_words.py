"""Bare arguments are split as a shell splits them, each word with its line."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.sources.script import split_words

LIST = """\
# shape
--num-layers 24 \\
--hidden-size 1024  # width
--data-path "0.3 a" 'b'\\ c
"""


def texts(text, **defined):
    return [word.text for word in split_words("args.txt", text, defined)]


def test_words_of_several_lines_have_their_lines():
    words = split_words("args.txt", LIST, {})
    assert [(word.text, word.place.line) for word in words] == [
        ("--num-layers", 2),
        ("24", 2),
        ("--hidden-size", 3),
        ("1024", 3),
        ("--data-path", 4),
        ("0.3 a", 4),
        ("b c", 4),
    ]


def test_one_line_has_no_line():
    (word,) = split_words("--args", "--fp16", {}, lines=False)
    assert str(word.place) == "--args"


def test_a_variable_is_filled_where_it_is_defined_and_else_asked_for():
    assert texts("--load $A/x ${B}1 '$A' \\$A", A="a", B="b") == ["--load", "a/x", "b1", "$A", "$A"]
    _, word = split_words("args.txt", '--load "$A/x"', {})
    assert (word.text, [asked.name for asked in word.asked]) == ("/x", ["A"])


def test_an_empty_variable_is_no_word_unless_it_is_quoted():
    assert texts('--a $E "$E"', E="") == ["--a", ""]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("--a\n'b", "args.txt:2: a quote or a backslash is not closed"),
        ("--a 1 \\ \n--b", "args.txt:1: blanks follow the backslash"),
        ("--a 1; rm x", "args.txt:1: '1;' is not an argument"),
        ("--vocab-file <Specify path>", "'<Specify' is not an argument"),
        ("--a $(hostname)", "is not an argument"),
        ('--a "$(hostname)"', "only a shell can compute"),
        ('--a "`hostname`"', "only a shell can compute"),
        ('--a "${A:-3}"', "only a shell can compute"),
    ],
)
def test_it_refuses(text, what):
    with pytest.raises(MigrateError) as error:
        texts(text)
    assert what in str(error.value)


def test_a_variable_of_several_words_is_refused_without_quotes():
    assert texts('"$A"', A="a b") == ["a b"]
    with pytest.raises(MigrateError, match="several words"):
        texts("$A", A="a b")


@pytest.mark.parametrize("text", ["a#b # c", "#a\nb", "a\\\nb", "a \\\n#b\nc", '"a\\\nb"', "\\#", "'#'"])
def test_comments_and_escaped_line_ends_are_a_shells(text):
    expected = {"a#b # c": ["a#b"], "#a\nb": ["b"], "a \\\n#b\nc": ["a", "c"], "\\#": ["#"], "'#'": ["#"]}
    assert texts(text) == expected.get(text, ["ab"])


@given(st.text(alphabet="ab-='\" \n", max_size=25))
def test_it_splits_like_shlex(text):
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(MigrateError):
            texts(text)
    else:
        assert texts(text) == expected
