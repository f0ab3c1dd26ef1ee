"""Scripts are read as bash would run them; what only running them tells is asked for, and never guessed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Place
from pretrain.tools.migrate.shell.reader import read_script, read_text


@pytest.fixture
def read(tmp_path):
    """Write a script and read it."""

    def run(text, **defined):
        path = tmp_path / "train.sh"
        path.write_text(text)
        return read_script(path, defined)

    return run


@pytest.fixture
def words(read):
    """Read a script and show its commands, with the names of what is asked for as ?NAME."""

    def run(text, **defined):
        return [" ".join(map(shown, command.words)) for command in read(text, **defined).commands]

    return run


def shown(word):
    """Return a word, with what it asks for."""
    return word.text + "".join(f"?{asked.name}" for asked in word.asked)


SCRIPT = """#!/bin/bash
# Trains a small model.
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))   # of all nodes
CHECKPOINTS=$1
DATA="0.3 ${TEXTS}/wiki 0.7 ${TEXTS}/web"
GPT_ARGS=" \\
    --num-layers 24 \\
    --data-path $DATA \\
    --fp16 "
zero=1
config=ds.json
cat <<EOT > $config
{"zero_optimization": {"stage": $zero}, "train_batch_size": ${GPUS_PER_NODE}}
EOT
export LAUNCHER="python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NUM_NODES"
CMD="$LAUNCHER pretrain_gpt.py $GPT_ARGS --save $CHECKPOINTS --deepspeed_config ${config}"
echo $CMD
CUDA_VISIBLE_DEVICES=0 $CMD 2>&1 | tee log_$WORLD_SIZE.txt
"""


def test_a_training_script_gives_its_command_and_the_file_it_writes(read, tmp_path):
    script = read(SCRIPT, TEXTS="/data", **{"1": "out"})
    _cat, training, tee = script.commands
    expected = (
        "python -m torch.distributed.run --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 24 --data-path"
    )
    expected += " 0.3 /data/wiki 0.7 /data/web --fp16 --save out --deepspeed_config ds.json"
    assert [word.text for word in training.words] == expected.split()
    assert [word.text for word in tee.words] == ["tee", "log_16.txt"]
    assert {name: word.text for name, word in training.environment.items()} == {"CUDA_VISIBLE_DEVICES": "0"}
    assert script.files == {"ds.json": '{"zero_optimization": {"stage": 1}, "train_batch_size": 8}\n'}
    lines = {word.text: word.place for word in training.words}
    assert lines["--num-layers"] == Place(str(tmp_path / "train.sh"), 9)
    assert (lines["--fp16"].line, lines["/data/web"].line, lines["--save"].line) == (11, 7, 18)


def test_what_it_does_not_set_is_asked_for_by_name(words):
    assert {part for part in words(SCRIPT)[1].split() if "?" in part} == {"/wiki?TEXTS", "/web?TEXTS", "?1"}


SAME = [
    ("words after redirections", "run a 2>&1 b >f c", ["run a b c"]),
    ("here-strings are no words", "run <<< x a", ["run a"]),
    (
        "nohup, exec and time stay",
        "nohup run a &\ntime run b | tee log\nexec run c &> log",
        ["nohup run a", "time run b", "tee log", "exec run c"],
    ),
    ("after exec nothing runs", "exec run a\nrun b", ["exec run a"]),
    ("chains from left to right", "false && run a || run b\ntrue || run c && run d", ["run b", "run d"]),
    ("negation", "! false && run a\n! true || run b", ["run a", "run b"]),
    ("exit ends the script", "run a\n[ 1 = 1 ] && exit 0\nrun b", ["run a"]),
    ("return ends a function", "f() { run a; return; run b; }\nf\nrun c", ["run a", "run c"]),
    (
        "functions have their own arguments",
        'f() { run $1 $# "$@"; g "$2"; run $1; }\ng() { run $1; shift; run $#; }\nset -- x y\nf "a b" c\nrun $*',
        ["run a b 2 a b c", "run c", "run 0", "run a b", "run x y"],
    ),
    ("arguments from the second", 'set -- a b c\nrun "${@:2}" ${@:1:1}', ["run b c a"]),
    ("locals stay inside", "A=1\nf() { local A=2 B; B=3; run $A$B; }\nf\nrun $A ${B-none}", ["run 23", "run 1 none"]),
    (
        "shells of their own",
        "A=1\n(A=2; run $A)\nA=3 | true\nB=$(A=4)\nrun $A\n{ A=5; }\nrun $A",
        ["run 2", "run 1", "run 5"],
    ),
    ("variables of one command", "A=1\nf() { run $A; A=3; }\nA=2 f\nrun $A", ["run 2", "run 1"]),
    ("an assignment in an expansion", ": ${A:=x}\nrun $A", ["run x"]),
    ("unset variables are empty", "A=1\nunset A\nrun a$A", ["run a"]),
    (
        "arithmetic",
        "A=3\nrun $((A=4, A+1)) $A $((2**3**2)) $((0x1f+010)) $((-7/2)) $((1?2:3)) $((A++)) $A",
        ["run 5 4 512 39 -3 2 4 5"],
    ),
    ("arithmetic wraps", "run $((9223372036854775807+1))", ["run -9223372036854775808"]),
    ("let and ((", "A=1\nlet A+=2 B=A*2\n((A++, B--))\nrun $A $B", ["run 4 5"]),
    (
        "patterns with quoted parts",
        "A=a/b.c\nrun ${A//\\//_} ${A%'.c'} ${A#*/} ${A/\"b\"/x}",
        ["run a_b.c a/b b.c a/x.c"],
    ),
    (
        "= in [ is no pattern",
        '[ abc = "a*" ] || run a\n[[ abc == a* ]] && run b\n[[ abc == "a*" ]] || run c',
        ["run a", "run b", "run c"],
    ),
    (
        "tests with -a and !",
        "[ ! a -a ! b ] || run a\nE=; [ -n $E ] || run b\nif ((3>2)); then run c; fi",
        ["run a", "run c"],
    ),
    ("numbers in tests are decimal", '[ 10 -eq "1_0" ] 2>/dev/null && run a || run b', ["run a", "run b"]),
    ("defaults of several words", 'run ${U:-"x y"} ${U:-a b}', ["run x y a b"]),
    (
        "arrays by index",
        "A=([1]=b [0]=a c)\nA+=(d)\nA[0]=z\nrun ${A[@]} ${#A[@]} ${A[@]:1:1} ${A[-1]}",
        ["run z c d 3 c d"],
    ),
    ("a scalar is the first element", "A=(a b)\nA=c\nA+=d\nrun ${A[@]} $A", ["run cd b cd"]),
    ("braces", "run a{b,c}{1..3} {x,'y z'} \"{a,b}\" {a}", ["run ab1 ab2 ab3 ac1 ac2 ac3 x y z {a,b} {a}"]),
    ("other quotes", "run $'a\\x41\\t' $\"b\" a\\\nb 'c'd", ["run aA\t b ab cd"]),
    (
        "case falls through",
        'case "a b" in a\\ b) run 1;& c) run 2;;& *b) run 3;; *) run 4;; esac',
        ["run 1", "run 2", "run 3"],
    ),
    (
        "option loops",
        (
            "set -- --lr 1 -x rest\nwhile [[ $# -gt 0 ]]; do case $1 in\n"
            "--lr) LR=$2; shift 2;; -*) X=1; shift;; *) break;; esac\n"
            "done\nrun $LR $X $*"
        ),
        ["run 1 1 rest"],
    ),
    (
        "loops",
        (
            "for a in 1 2; do for b in x y; do [ $b = y ] && continue 2; run $a$b; done; done\n"
            "for ((i=0;i<2;i++)) do run $i; done"
        ),
        ["run 1x", "run 2x", "run 0", "run 1"],
    ),
    ("eval", 'CMD="run \'a b\'"\neval $CMD --x\neval "A=5; run \\$A"', ["run a b --x", "run 5"]),
    (
        "strings for bash -c see exported variables",
        "A=1\nexport B=2\nsrun -N 1 bash -lc 'run $B $A $0 $1' x y",
        ["srun -N 1 bash -lc run $B $A $0 $1 x y", "run 2 ?A ?0 y"],
    ),
    ("a failed command ends a strict script", "set -euo pipefail\nfalse || run a\nfalse\nrun b", ["run a"]),
    ("a first line that lost its #", "!/bin/bash\nrun a", ["!/bin/bash", "run a"]),
    ("a last backslash", "run a \\\n  b \\\n", ["run a b"]),
    ("ends of lines of another system", "\ufeffA=1\r\nrun $A\r\n", ["run 1"]),
    ("a comment within an array", "A=(a # it's one\n b)\nrun ${A[@]}", ["run a b"]),
    ("the last status", "f() { return 3; }\nf\nrun $?\n[ a = b ]\nrun $(echo a) $? $(f) $?", ["run 3", "run a 0 3"]),
    ("a function of a pipeline's output", 'f() { echo a b; }\nrun $(f) "`f | cat`"', ["cat", "run a b a b"]),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in SAME], ids=[case[0] for case in SAME])
def test_it_is_read_as_bash_runs_it(words, text, expected):
    assert words(text) == expected


ASKED = [
    ("output of programs", "A=$(hostname)\nrun $A `date`", ["hostname", "date", "run ?A ?`date`"]),
    (
        "the environment",
        "run $HOME/x ~/y $SLURM_NNODES $RANDOM $$ $0",
        ["run /x?HOME /y?HOME ?SLURM_NNODES ?RANDOM ?$$ ?0"],
    ),
    ("both branches", "X=0\nif [ -f file ]; then A=1 B=2 X=0; else A=1 B=3 X=0; fi\nrun $A $B $X", ["run 1 ?B 0"]),
    ("chains of unknown tests", "A=1\n[ -d x ] && A=2 || B=3\nrun $A $B", ["run ?A ?B"]),
    ("loops over unknown words", "A=1\nB=2\nfor x in $(ls); do A=$x; done\nrun $A $B", ["ls", "run ?A 2"]),
    ("loops of unknown length", "A=0\nwhile read -r l; do A=$((A+1)); run in; done\nrun $A", ["run in", "run ?A"]),
    (
        "read and its like",
        "A=1\nB=2\nC=3\nread A <<< x\nprintf -v B %d 3\nmapfile C < f\nrun $A $B $C",
        ["run ?A ?B ?C"],
    ),
    ("declarations that change values", "declare -i A=1+1\nA=3\nreadonly B=1\nB=2\nrun $A $B", ["run ?A ?B"]),
    ("an unknown source forgets", "A=1\n. ./settings.sh\nB=2\nrun $A $B", ["run ?A 2"]),
    ("an environment to activate does not", "A=1\nsource conda/bin/activate x\nrun $A", ["run 1"]),
    ("unknown text is evaluated", 'A=1\neval "$U"\nrun $A', ["eval ?U", "run ?A"]),
    ("exported by a program", "A=1\nexport $(cat .env)\nrun $A", ["cat .env", "run ?A"]),
    ("placeholders", "A=<Specify path>_text\nrun $A <your file>", ["run _text?A ?<your file>"]),
    ("other separators", "A='a,b'\nIFS=,\nrun $A \"$A\"", ["run ?IFS a,b"]),
    ("names of files", "run data/*.bin '*'", ["run data/*.bin?data/*.bin *"]),
    ("an indirect name", "A=B\nB=1\nrun ${!A} ${A@Q}", ["run ?${!A} ?${A@Q}"]),
    ("a leaving that is not certain", "A=1\nif [ -f x ]; then A=2; exit; fi\nrun $A", ["run 1"]),
    ("an argument that is shifted", "shift\nrun $1 $#", ["run ?2 ?@"]),
    ("arguments after an unknown one", "f() { run $1 $2; }\nf a $U b", ["run a ?U"]),
    ("an array with an unknown part", 'A=(--a $U --b)\nrun "${A[@]}" ${#A[@]}', ["run --a ?U --b ?A"]),
    ("a test that may assign", "A=1\n[[ -f x && $((A=2)) -eq 2 ]]\nrun $A", ["run ?A"]),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in ASKED], ids=[case[0] for case in ASKED])
def test_what_only_running_it_tells_is_asked_for(words, text, expected):
    assert words(text) == expected


def test_a_value_that_depends_on_a_condition_names_its_line(read):
    asked = read('A=1\nif [ -n "$KEY" ]; then A=2; fi\nrun $A').commands[0].words[1].asked[0]
    assert (asked.name, asked.why) == ("A", 'its value depends on [ -n "$KEY" ] in line 2')


def test_a_definition_wins_over_the_scripts_own_in_every_scope(words):
    text = "A=1\nB=$(date)\nf() { local A=2; run $A $B $1; }\nf x\nrun $1"
    assert words(text, A="7", B="8", **{"1": "y"}) == ["date", "run 7 8 x", "run y"]


def test_all_arguments_are_defined_at_once(words):
    assert words('for a; do run "$a"; done\nrun $# $2', **{"@": "a 'b c'"}) == ["run a", "run b c", "run 2 b c"]


FILES = [
    ("quotes and escapes stay", 'A=1\ncat <<EOF > f && run\n\\" \\$A $A\nEOF', '\\" $A 1\n'),
    ("tabs are stripped", "cat > f <<-EOF\n\t\ta\n\tEOF", "a\n"),
    ("a quoted delimiter", "cat <<'EOF' > f\n$A \\\\\nEOF", "$A \\\\\n"),
    ("echo and append", "echo a  b > f\necho -n c >> f", "a b\nc"),
    ("tee", "cat <<EOF | tee f > /dev/null\nx\nEOF", "x\n"),
    ("a group", "{ echo a; echo b; } > f", "a\nb\n"),
    ("a here-string", "cat <<< a > f", "a\n"),
    ("printf", "printf '%s\\n' '{}' > f", "{}\n"),
]


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in FILES], ids=[case[0] for case in FILES])
def test_files_that_it_writes_are_known(read, text, expected):
    assert read(text).files == {"f": expected}


@pytest.mark.parametrize(
    "text",
    [
        "cat <<EOF > f\n$U\nEOF",
        "if [ -f x ]; then echo a > f; fi",
        "sed s/a/b/ g > f",
        "echo a > f\nsed -i s/a/b/ ./f",
        "echo a >> f",
        "echo a > f\nrun f\necho b > f",
        "cp g f",
        "python make.py | tee f",
    ],
    ids=["a variable", "one branch", "a program", "changed", "appended", "written again", "copied", "another's output"],
)
def test_other_files_are_named_as_unknown(read, text):
    script = read(text)
    assert script.files == {}
    assert list(script.unknown_files) == ["f"]


def test_a_file_of_unknown_name_is_a_notice(read):
    assert "name is not known" in read("echo a > $U").notices[0]


def test_sourced_files_give_functions_variables_and_lines(read, tmp_path):
    (tmp_path / "env.sh").write_text("SIZE=$1\n\nflags() { ARGS='--size '$SIZE; return; ARGS=none; }\n")
    script = read("source ./env.sh 345M\nflags\nrun $ARGS $1")
    assert [shown(word) for word in script.commands[0].words] == ["run", "--size", "345M", "?1"]
    assert script.commands[0].words[1].place == Place(str(tmp_path / "env.sh"), 3)


def test_a_text_alone_is_read_like_a_script():
    script = read_text("A=1\nrun $A", Place("--args"), {})
    assert script.commands[0].words[1].place == Place("--args")


@pytest.mark.parametrize(
    "text",
    [
        "f() { f; f; }\nf",
        "A=ab\nfor i in {1..40}; do A=$A$A; done",
        "L=(a b)\nwhile true; do L+=(${L[@]}); done",
        "while true; do A=1; B=x$B; done",
        "source ./train.sh",
        "run {1..99999999}",
        "run " + "{a,b}" * 30,
    ],
)
def test_what_grows_without_end_is_an_error(read, text):
    with pytest.raises(MigrateError, match=r"\n.*\n"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "if true; then",
        'A="open',
        "run )",
        "for do done",
        "( " * 300 + "a" + " )" * 300,
        "cat <<EOF\na",
        "run a; ; b",
        "select x in a; do b; done",
        "#!/bin/zsh\nrun",
        "shopt -s extglob",
        "declare -n A=B",
        "for a in 1; do (break); done",
        "f() { break; }\nwhile true; do f; done",
    ],
)
def test_what_is_not_understood_is_an_error_that_names_the_line(read, text):
    with pytest.raises(MigrateError, match=r"train\.sh:\d+: .*\n.*\n"):
        read(text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_script_is_an_error_or_read(tmp_path_factory, data):
    place, length = data.draw(st.integers(0, len(SCRIPT) - 1)), data.draw(st.integers(0, 20))
    by = data.draw(st.text("${}()[]\"'\\\n;|&<>=#`a1 ", max_size=4))
    with suppress(MigrateError):
        read_text(SCRIPT[:place] + by + SCRIPT[place + length :], Place("a.sh"), {})


def test_a_definition_gives_the_elements_of_an_array_and_the_value_of_a_placeholder(read):
    text = 'A=(--a 1)\n[ -n "$W" ] && A+=(--b)\nD="<a path>"\neval run "${A[@]}" --data $D --x=<other path>'
    (command,) = read(text, **{"A": "--q 'r s'", "<a path>": "p", "<other path>": "o"}).commands
    assert [word.text for word in command.words] == ["run", "--q", "r", "s", "--data", "p", "--x=o"]
    (command,) = read('A=(x)\nrun "${A[@]}" ${A[1]}', A="--q 'r s'").commands
    assert [word.text for word in command.words] == ["run", "--q", "r s", "r", "s"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run --a \\\n# --b \\\n--c", [["run", "--a"], ["--c"]]),
        ("run --a # b \\\nrun --c", [["run", "--a"], ["run", "--c"]]),
        ("W=1 # was 2 \\\nrun ${W:-3}", [["run", "1"]]),
        ("if true; then\nX=1 # c \\\nfi\nrun $X", [["run", "1"]]),
        ("cat > f <<J # c \\\nx\nJ\nrun", [["cat"], ["run"]]),
        ('S="a \\\n# b \\\nc"\nrun $S', [["run", "a", "#", "b", "c"]]),
        ('A=(a b)\nrun "${A[@]/#/--}" "${A[@]/%/=1}" ${A/#/x} ${A/}', [["run", "--a", "--b", "a=1", "b=1", "xa", "a"]]),
    ],
    ids=[
        "in a command",
        "at its end",
        "at an assignment",
        "in a condition",
        "here-document",
        "quoted",
        "tied patterns",
    ],
)
def test_a_comment_ends_at_its_line_and_an_empty_pattern_adds(read, text, expected):
    assert [[word.text for word in command.words] for command in read(text).commands] == expected


@pytest.mark.parametrize(
    "text", ["f() { S=${2%%$X}; run $S; }; f a", 'A=()\nrun "${A[0]:0:$N}"', "unset B; run ${B:one}"]
)
def test_an_operator_that_is_not_known_on_nothing_is_asked_for(read, text):
    (command,) = read(text).commands
    assert command.words[1].asked
