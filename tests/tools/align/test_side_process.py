"""Processes of another installation, of which nothing but its command line is used."""

import os
import sys
from pathlib import Path

import pytest

from pretrain.errors import RunError
from pretrain.tools.align.side import is_this_installation, run_pretrain

MAIN = """
import os, sys
from pathlib import Path
def main():
    folder = Path(__file__).parents[2]
    (folder / "words").write_text(" ".join(sys.argv[1:]))
    (folder / "path").write_text(os.environ["PYTHONPATH"])
    sys.exit(7)
"""


@pytest.fixture
def other(tmp_path):
    """Interpreter of an installation whose pretrain has a command line, and no more."""
    for folder in ("pretrain", "pretrain/cli"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("")
    (tmp_path / "pretrain" / "cli" / "main.py").write_text(MAIN)
    (tmp_path / "pretrain" / "cli" / "commands.py").write_text('COMMANDS = {"align": ""}')
    python = tmp_path / "python"
    path = f"PYTHONPATH={tmp_path}${{PYTHONPATH:+:$PYTHONPATH}}"
    python.write_text(f'#!/bin/sh\n{path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_another_version_needs_nothing_but_its_command_line(other, monkeypatch):
    here = str(Path(run_pretrain.__code__.co_filename).parents[3])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, "/of/cann"]))

    assert run_pretrain(other, ["align", "recipe"]) == 7

    assert (other.parent / "words").read_text() == "align recipe"
    assert (other.parent / "path").read_text() == f"{other.parent}:/of/cann"


def test_an_interpreter_of_this_installation_is_known(other):
    assert is_this_installation(Path(sys.executable))
    assert not is_this_installation(other)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/bin/sh\necho 'No module named pretrain' >&2; exit 1", "has no `pretrain align`: No module named pretrain"),
        ("#!/none/such", "cannot be started"),
    ],
)
def test_what_is_no_installation_is_an_error(tmp_path, text, message):
    python = tmp_path / "python"
    python.write_text(text)
    python.chmod(0o755)

    with pytest.raises(RunError, match=message):
        is_this_installation(python)
