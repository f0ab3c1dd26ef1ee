"""Outputs of `pretrain plan` in the README."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
README = (ROOT / "README.md").read_text()
COMMANDS = [re.sub(r"\s+", " ", command) for command in re.findall(r"`(pretrain plan [^`]*--[^`]*)`", README)]


def test_there_are_two():
    assert [command.split()[2] for command in COMMANDS] == ["recipes/gpt3.yml", "recipes/neox20b.yml"]


@pytest.mark.full
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[2])
def test_the_readme_shows_what_a_command_prints(command):
    """Without the assumptions, where tokenizer files are absent."""
    arguments = shlex.split(command)[1:]
    ended = subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    printed = ended.stdout.partition("\nassumed:")[0].strip()
    assert f"```\n{printed}\n```" in README
