"""Paths on the command line are of this machine."""

from __future__ import annotations

import click
import pytest

from pretrain.cli.commands import COMMANDS, LazyCommands
from pretrain.cli.options import LocalPath


def parameters(command, name=""):
    for parameter in command.params:
        yield f"{name} {parameter.name}", parameter.type
    for inner, below in getattr(command, "commands", {}).items():
        yield from parameters(below, f"{name} {inner}")


def test_an_address_is_refused_and_makes_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.BadParameter, match="'s3://bucket/run' is a URL; only local files"):
        LocalPath().convert("s3://bucket/run", None, None)
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_refused_where_a_path_or_a_name_is_given():
    command = LazyCommands().get_command(None, "align")
    with pytest.raises(click.BadParameter, match="'s3://bucket/run' is a URL") as error:
        command.main(["recipe.yml", "--against", "s3://bucket/run"], standalone_mode=False)
    assert error.value.param.opts == ["--against"]


def test_every_path_of_every_command_is_of_this_type():
    group = LazyCommands()
    of_click = [
        name
        for command in COMMANDS
        for name, kind in parameters(group.get_command(None, command), command)
        if type(kind) is click.Path
    ]
    assert of_click == []
