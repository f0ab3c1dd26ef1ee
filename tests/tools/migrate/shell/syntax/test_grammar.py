"""The grammar's nodes become trees that mean what bash does, where the grammar alone would mean something else."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Asked, Place
from pretrain.tools.migrate.shell.reader import read_text
from pretrain.tools.migrate.shell.spans import Span, Written
from pretrain.tools.migrate.shell.syntax import shfmt
from pretrain.tools.migrate.shell.syntax.grammar import parse

PLACE = Place("train.sh", 1)


def words(text):
    """Return the commands of a text, with the names of what is asked for as ?NAME."""
    return [
        " ".join(word.text + "".join(f"?{asked.name}" for asked in word.asked) for word in command.words)
        for command in read_text(text, PLACE, {}).commands
    ]


CONDITIONS = [
    ("! a == b || c == d && e == f", True),
    ("a == b && c == d || e == e", True),
    ("! a == a || b == b", True),
    ("a == a || b == b && c == d", True),
    ("! ( a == b ) && c == d", False),
    ("! ( a == b || ! c == d ) || e == f", False),
    ("! ! a == a", True),
]


@pytest.mark.parametrize(("condition", "holds"), CONDITIONS)
def test_in_double_brackets_and_binds_closer_than_or_and_not_closest(condition, holds):
    assert words(f"[[ {condition} ]] && run") == ["run"] * holds


READ = [
    ("a layer frequency in an array", 'L=(--freq [0]*3+[1]*24)\nrun "${L[@]}"', ["run --freq [0]*3+[1]*24"]),
    ("a declaration behind an assignment", 'X=1 export A="a b" B=c\nrun "$A" $B', ["run a b c"]),
    ("expressions of let are words", 'let A=2 "B = A*3"\nrun $A $B', ["run 2 6"]),
    ("backquotes in backquotes", r"run `echo \`echo n\`` ", ["run n"]),
    ("backquotes with an escaped dollar", r"A=1; run `echo \$A` `echo \\$A`", ["run 1 $A"]),
    ("single quotes in a default in double quotes", """run "${A:-'x'}" ${B:-'y z'}""", ["run 'x' y z"]),
    ("bytes of several characters", 'A="é中"; run "é${A}中" $A # ü\nrun é$Aé', ["run éé中中 é中", "run éé中é"]),
    ("a name over two lines", "AB=1\nrun $A\\\nB ${A\\\nB}", ["run 1 1"]),
    ("a slice with arithmetic", "A=abcdef; run ${A:(1+1):$((1)) } ${A::2} ${A: -1}", ["run c ab f"]),
    ("an empty pattern", "A=ab; run ${A//} ${A//b} ${A/b/}", ["run ab a a"]),
    ("a time", "time -p run x | tee y", ["time run x", "tee y"]),
    ("a hole that is text", 'eval "run $U --a=$V"', ["run ?U --a=?V"]),
    ("a hole in a condition", 'eval "if [ $U ]; then run; fi"', ["run"]),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in READ], ids=[case[0] for case in READ])
def test_a_form_is_read_as_bash_runs_it(text, expected):
    assert words(text) == expected


PLACEHOLDERS = [
    ("an assignment", "A=<Specify path>/x\nrun $A", ["run /x?A"]),
    ("a word", "run <Path to x> b", ["run ?<Path to x> b"]),
    ("a part of a word", "run --a=<my path>/y", ["run --a=/y?<my path>"]),
    ("none in quotes", 'run "a <not this>" # <nor this>', ["run a <not this>"]),
    ("none in a here-document", "cat <<E >f\nA=<b c>\nE\nrun", ["cat", "run"]),
    ("files", "run <a >b", ["run"]),
]


@pytest.mark.parametrize(
    ("text", "expected"), [case[1:] for case in PLACEHOLDERS], ids=[case[0] for case in PLACEHOLDERS]
)
def test_a_value_that_is_left_to_the_reader_is_asked_for(text, expected):
    assert words(text) == expected


def test_a_here_document_keeps_its_placeholders_and_loses_its_tabs():
    files = read_text("A=1\ncat <<-E > f\n\t\t<b c> $A \\\n\tx\n\tE\ncat <<E > g\nE\n", PLACE, {}).files
    assert files == {"f": "<b c> 1 x\n", "g": ""}


def test_lines_are_counted_in_a_text_with_placeholders():
    statements = parse(Written.of_file("\n# é\nA=<b é> B=\nrun <c d>", "train.sh"))
    assert [statement.place.line for statement in statements] == [3, 4]


REFUSED = [
    ("quotes that the grammar would pair", """run "${A:-it's}" b "${C:-it's}" """, "is not read"),
    ("a body that is no compound", "f() run", "is not understood"),
    ("no body", "if a; then fi", "is not understood: `then` must be followed by a statement list"),
    ("too many texts in texts", r"run `echo \$A`;" * 150, "holds more than 100 texts"),
    ("a coprocess", "coproc run", "is not read"),
]


@pytest.mark.parametrize(("text", "why"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_the_grammar_would_mistake_is_refused(text, why):
    with pytest.raises(MigrateError, match=rf"^train\.sh:1: .*{why}.*\n.*\nCheck it with: bash -n train\.sh$"):
        read_text(text, PLACE, {})


def test_a_word_that_the_grammar_cuts_at_a_number_sign_is_refused(monkeypatch):
    cut = {"Stmts": [], "Last": [{"Hash": {"Offset": 9}, "Text": ""}]}
    monkeypatch.setattr("pretrain.tools.migrate.shell.syntax.grammar.nodes_of", lambda _text: cut)
    with pytest.raises(MigrateError, match=r"^train\.sh:1: '# --b' is not read"):
        words("run ${A:1# --b")
    assert words("run ${A: # --b") == []


def test_an_error_names_the_line_of_a_text_out_of_a_variable():
    hole = Span("", PLACE, Asked("U", PLACE, "$U"))
    written = Written([Span("run é\n", Place("train.sh", 4)), hole, Span(" | )", Place("train.sh", 9))], PLACE)
    with pytest.raises(MigrateError, match=r"^train\.sh:9: .* is not understood"):
        parse(written)


def test_without_shfmt_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(shfmt.shutil, "which", lambda *_args, **_options: None)
    with pytest.raises(MigrateError, match=r"shfmt is not installed.*\n.*\nInstall it: pip install shfmt-py"):
        words("run")


def test_a_text_that_a_loop_evaluates_is_read_once(monkeypatch):
    texts = []

    def nodes_of(text):
        texts.append(text)
        return shfmt.nodes_of(text)

    monkeypatch.setattr("pretrain.tools.migrate.shell.syntax.grammar.nodes_of", nodes_of)
    assert words("C='run $i'\nfor i in 1 2 3; do eval \"$C\"; done") == ["run 1", "run 2", "run 3"]
    assert texts[1:] == [b"run $i"]


def test_a_program_that_prints_a_programs_name_sets_nothing():
    assert words("A=1\nif $(ssh host test -f x); then B=2; fi\nrun $A $B") == [
        *["ssh host test -f x", "?$(ssh host test -f x)", "run 1 ?B"],
    ]
    assert words("A=1\n$CMD\nrun $A")[-1] == "run ?A"


def test_a_condition_is_shown_in_what_depends_on_it():
    shown = 'if   [ -n "$KEY" ] &&\n  grep -q "something that is long" /a/file/with/a/name; then A=2; fi\nrun $A'
    asked = read_text(f"A=1\n{shown}", PLACE, {}).commands[-1].words[1].asked[0]
    assert asked.why == 'its value depends on [ -n "$KEY" ] && grep -q "something that is long" /a/file... in line 1'


def test_what_is_unknown_is_shown_as_dots():
    assert read_text('eval "echo a > $U/x.json"', PLACE, {}).notices == (
        "train.sh:1: a file is written whose name is not known: .../x.json.",
    )
