"""Names that a text reads: a definition of another name is a mistake of the user's."""

from __future__ import annotations

import pytest

from pretrain.tools.migrate.sources.recognition import read_source
from pretrain.tools.migrate.sources.script import names_read

TRAINING = "torchrun pretrain_gpt.py --lr 1\n"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a $LR b", {"LR"}),
        ("${LR:-3} ${#TEXT} ${!REFERENCE}", {"LR", "TEXT", "REFERENCE"}),
        ("LR=3\nexport SIZE=4\nLIST+=(x)", {"LR", "SIZE", "LIST"}),
        ("echo $((NODES * GPUS))", {"NODES", "GPUS"}),
        ("if [[ -v DEBUG ]]; then :; fi", {"DEBUG"}),
        ("for i in 1; do test $i -eq COUNT; done", {"i", "COUNT"}),
        ("no names", set()),
    ],
)
def test_variables(text, names):
    assert names <= names_read("a.sh", text, {})
    assert "OTHER" not in names_read("a.sh", text, {"OTHER": ""})


@pytest.mark.parametrize(
    ("text", "read", "unread"),
    [
        ("x $1", {"1", "@"}, {"2"}),
        ("x ${12}", {"12"}, {"1"}),
        ('x "$@"', {"1", "2", "@"}, set()),
        ("A=$1; shift", {"1", "2"}, set()),
        ("x", set(), {"1", "@"}),
    ],
)
def test_arguments_of_a_script(text, read, unread):
    found = names_read("a.sh", text, dict.fromkeys(("1", "2", "12", "@"), ""))
    assert read <= found
    assert not unread & found


@pytest.mark.parametrize("line", ["source env.sh", ". ./env.sh", 'source "$HERE/env.sh"', "true; source env.sh"])
def test_names_of_files_that_are_sourced_count(tmp_path, line):
    (tmp_path / "env.sh").write_text("SIZE=${SIZE:-3}\n")
    assert {"SIZE"} <= names_read(str(tmp_path / "a.sh"), line, {}) <= {"SIZE", "HERE"}


def test_where_a_file_is_not_there_every_definition_may_be_read():
    assert "ANY" in names_read("a.sh", "source somewhere.sh", {"ANY": ""})


def test_sources_have_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text(f"N=$1\n{TRAINING} --x $LR\n")
    (tmp_path / "args").write_text("--lr $LR")
    (tmp_path / "gpt.yaml").write_text("language_model: {activation_func: gelu}\nload: ${FOLDER}\n")
    (tmp_path / "b.sh").write_text(f"{TRAINING.strip()} --yaml-cfg gpt.yaml --x $LR\n")
    (tmp_path / "x.yml").write_text("num-layers: 2\npos-emb: rotary\n")
    defined = {"FOLDER": "x", "1": "y", "OTHER": ""}
    found = {name: read_source(name, defined).read_names for name in ("a.sh", "args", "gpt.yaml", "b.sh", "x.yml")}
    assert found == {
        "a.sh": {"N", "1", "@", "LR"},
        "args": {"LR"},
        "gpt.yaml": {"FOLDER"},
        "b.sh": {"LR", "FOLDER"},
        "x.yml": frozenset(),
    }
