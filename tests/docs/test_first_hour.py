"""docs/first-hour.md: its commands are given as they stand, in their order, and print what the page shows."""

from __future__ import annotations

import shutil

import pytest

from docs.page_commands import Reader, commands, steps
from structure.sources import ROOT, tracked

STEPS = list(steps((ROOT / "docs" / "first-hour.md").read_text(encoding="utf-8")))
GIVEN = [command for step in STEPS if step.kind == "commands" for command in commands(step)]
NOT_GIVEN = {
    "make venv": "it installs for minutes, from a package index",
    "source .venv/bin/activate": "this test's environment stands in its place",
    'pip install --constraint constraints.txt --editable ".[eval]"': "it needs a package index",
}
"""Command -> why the test does not give it."""
CTRL_C = {
    "pretrain first.yml --run-dir runs/first": r"iteration 1\d0/300",
    "tensorboard --logdir runs/first/tensorboard": r"http://\S+:\d+",
}
"""Command -> what it prints before the reader presses Ctrl-C."""
CODES = {"pretrain first.yml --run-dir runs/first": 75}
"""Command -> its exit code, where that is not 0."""
WRITTEN_BY_THE_MODEL = "def load"


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """Return a reader in a copy of what git tracks."""
    folder = tmp_path_factory.mktemp("clone")
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return Reader(folder)


@pytest.mark.full
@pytest.mark.slow
def test_the_page_is_followed_to_its_end(reader, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(reader.folder / "core"))
    monkeypatch.setenv("HF_HOME", str(reader.folder / "cache"))
    for step in STEPS:
        if step.kind == "file":
            (reader.folder / step.name).parent.mkdir(exist_ok=True)
            (reader.folder / step.name).write_text(step.text)
        elif step.kind == "output":
            unseen = [line for line in step.text.splitlines() if is_fixed(line) and not reader.has_seen(line)]
            assert unseen == [], reader.printed
        else:
            give_all(reader, [command for command in commands(step) if command not in NOT_GIVEN])
    assert reader.ended == list(CTRL_C)


def give_all(reader, wanted):
    for command in wanted:
        if "--tasks" in command:
            pytest.importorskip("lm_eval", reason="lm-eval is not installed: all steps before it were taken")
        code = reader.give(command, until=CTRL_C.get(command))
        assert command.startswith("tensorboard") or code == CODES.get(command, 0), reader.printed


def is_fixed(line):
    """Say whether a line is the same in every training but for its numbers: the model's own text is not."""
    return line not in {"", "..."} and not line.startswith((" ", WRITTEN_BY_THE_MODEL))


def test_what_is_not_given_or_ended_is_on_the_page():
    assert {*NOT_GIVEN, *CTRL_C, *CODES} <= set(GIVEN)
    assert len(GIVEN) > 15


def test_a_readers_folder_and_lines_are_compared_but_for_numbers(tmp_path):
    own = Reader(tmp_path)
    assert own.give("echo saved 17 files, 1.5 s; false") == 1
    assert own.has_seen("saved 18 files, 22.05 s")
    assert own.has_seen("saved 18 files, ...")
    assert not own.has_seen("saved no files")


def test_a_reader_ends_what_does_not_end_by_itself(tmp_path):
    own = Reader(tmp_path)
    assert own.give("trap 'exit 75' INT; echo ready; while :; do sleep 0.1; done", until="ready") == 75
    assert own.ended == ["trap 'exit 75' INT; echo ready; while :; do sleep 0.1; done"]
