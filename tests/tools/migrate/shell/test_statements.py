"""Statements at random give the commands that bash itself runs, word by word, and write the same files."""

from __future__ import annotations

import random
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretrain.tools.migrate.shell.reader import read_script

HEAD = """show() { run show "$@"; true; }
A=abc B='b c' C=c N=3 E= L=(one 'two three' 4)
f() { local A=$1 C; N=$((N+1)); show f "$@" "$A" "${C-unset}"; [ $# -gt 1 ] && shift && f "$@"; B=$1; return $#; }
g() { A=$2; set -- x "$@"; show g "$#" $*; }
"""
DOCUMENT = '{"a": $A, "b": \\$A \\" `echo $N` \\\n more $((N*2))}'
OPTIONS = "while [[ $# -gt 0 ]]; do case $1 in a|--k*) A=$1; shift;; x) shift; shift;; *) B=$1; shift;; esac; done"
TAIL = 'show end "$A" "$B" "$C" "$N" "$E" "${L[@]}" "$@"\n'
BASH = "run() { printf '%s\\0' \"$@\" >&3; printf '\\n\\0' >&3; }\n"

VALUES = [
    *("a", '"b c"', "'x  y'", "$A", '"$B"', "${C}", "$((N+1))", '""', '"${A}z$B"', "${A:-d e}", '"${E:-"q r"}"'),
    *("${L[1]}", '"${L[*]}"', "$1", '"$2"', "$#", "${A%b*}", '"${B#* }"', '"${A/b/Q}"', "${A//[a-c]/_}", "${#A}"),
    *("x{1,2}", '$(echo "$A" k)', '"$(echo $B)"', "${A:1}", '"${B:0:2}"', "$?", r"$'t\tq'", r"\ s", r'"a\"b"'),
    *("$(( (N*3) % 5 ))", "${A^^}", "`echo $N`", '"${@:2}"', "x"),
]
ARGUMENTS = [
    *('"$A"', "$C$A", '"${L[@]}"', "${L[@]}", '"$@"', "$*", '"$*"', "${L[@]:1}", '"x$@y"', "${#L[@]}", '"$E"'),
    *("$E", "{a,b}$A", "--k=$B", '--k="$B"', '"${A:+s}"', "${E:+s}", "${E:-$B}", "${2-u}", '${A+"$B"}'),
]
CONDITIONS = [
    *('[ "$A" = a ]', "[[ $A == a* ]]", '[ -z "$E" ]', "[ $N -gt 2 ]", "((N>2))", "true", "false", "let N-3"),
    *("[[ -n $B && $N -lt 3 ]]", '[ ! "$A" = a -a -n "$B" ]', 'test "$C" != a', "((N--))", '[ "$A" ]', "f $A"),
    *('! [ "$B" = a ]', '[ "$1" = a -o $# -gt 1 ]', "[[ $A == [a-c]?* ]] && [ $N -gt 0 ]", "(exit $((N%2)))"),
]


class Statements:
    """Statements at random."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def one(self, *forms):
        return self.random.choice(forms)

    def words(self):
        return " ".join(self.one(*VALUES, *ARGUMENTS) for _ in range(self.random.randint(1, 3)))

    def simple(self):
        value, words = self.one(*VALUES), self.words()
        return self.one(
            self.one(*"ABCE") + self.one("=", "+=") + value,
            "N=$((N" + self.one("+ 1", "* 2 % 7", "- 1", "/ 2") + "))",
            "L" + self.one("=", "+=") + f"({words})",
            "L" + self.one("[0]", "[2]", "[N%3+3]") + f"={value}",
            f"show {words}",
            self.one("f", "g", "A=v f", "set --", "eval 'C=k;' show") + f" {words}",
            self.one("shift", "unset A", "((N++))", ": ${E:=$A}", "show p | { A=z; }", "A=1 C=$A", "set +e"),
            f"echo {words}" + self.one(">", ">>") + "f.txt",
        )

    def compound(self, depth):
        condition, other, joint, value = (
            self.one(*CONDITIONS),
            self.one(*CONDITIONS),
            self.one("&&", "||"),
            self.one(*VALUES),
        )
        first, second, third = (self.block(depth + 1) for _ in range(3))
        leaving, ending = self.one("break", "continue", "exit 3", ":"), self.one(";;", ";&", ";;&")
        return self.one(
            f"if {condition}; then\n{first}\nelif {other}; then\n{second}\nelse\n{third}\nfi",
            f"{condition} {joint} {self.simple()} {self.one('&&', '||')} {self.simple()}",
            f"for X in {self.words()}; do\n{condition} {joint} {leaving}\n{first}\nshow $X\ndone",
            f"I=0; while [ $I -lt 2 ]; do\nI=$((I+1))\n{self.simple()}\ndone",
            f"case {value} in\na*|'b c') {first}\n{ending}\n*' '*) {second}\n;;\n*) {third}\nesac",
            f"( {first}\n)",
            f"{{ {first}\n}}",
            f"cat <<EOF > f.json\n{DOCUMENT}\nEOF\n{first}",
            OPTIONS,
        )

    def block(self, depth=0):
        count = self.random.randint(1, 2) if depth else self.random.randint(3, 9)
        return "\n".join(
            self.compound(depth) if depth < 3 and self.random.random() < 0.4 else self.simple() for _ in range(count)
        )


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["", "a", "'b c' x", "--k=1 x q a"]), st.sampled_from(["", "set -e\n"]))
def test_statements_give_the_commands_of_bash(tmp_path_factory, seed, arguments, strict):
    folder = tmp_path_factory.mktemp("script")
    text = HEAD + strict + Statements(seed).block() + "\n" + TAIL
    (folder / "read.sh").write_text(text)
    (folder / "run.sh").write_text(BASH + text)
    command = f"timeout 5 bash run.sh {arguments} 3> shown 2> errors"
    subprocess.run(["bash", "-c", command], cwd=folder, check=False, stdout=subprocess.DEVNULL)
    raw = (folder / "shown").read_text()
    expected = [entry.split("\0") for entry in raw.removesuffix("\0\n\0").split("\0\n\0")] if raw else []
    script = read_script(folder / "read.sh", {"@": arguments})
    found = [command.words[1:] for command in script.commands if command.words[0].text == "run"]
    if not any(word.asked for words in found for word in words):
        assert [[word.text for word in words] for words in found] == expected, text
    for name, content in script.files.items():
        assert (folder / name).read_text() == content
