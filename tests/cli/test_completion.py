"""Completion in a shell: commands, recipes, keys of --set, backends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click
import pytest
from click.shell_completion import get_completion_class
from click.testing import CliRunner

from pretrain.cli.command_line import commands
from pretrain.cli.commands import COMMANDS, LazyCommands
from pretrain.cli.completion import command
from pretrain.cli.main import main
from pretrain.recipe.recipe import keys_of_recipe


def complete(*words: str) -> list[str]:
    """Return what may stand in place of the last word."""
    shell = get_completion_class("fish")
    assert shell is not None
    *before, incomplete = words
    found = shell(commands, {}, "pretrain", "").get_completions(list(before), incomplete)
    return [item.value if item.type == "plain" else f"a {item.type}" for item in found]


def test_a_command_or_the_recipe_of_the_default_command_comes_first():
    assert complete("") == list(COMMANDS)
    assert complete("comp") == ["completion"]
    assert complete("recipes/q") == ["a file"]
    assert complete("--v") == ["--version"]
    assert complete("checkpoint", "con") == ["convert"]


@pytest.mark.parametrize("words", [["run", "x.yml"], ["x.yml"], ["plan", "x.yml"], ["run", "--backend", "cpu"]])
def test_overrides_are_completed_by_section_and_key(words):
    assert complete(*words, "--set", "") == [f"{path}." for path in keys_of_recipe() if "." not in path]
    assert complete(*words, "--set", "mod") == ["model."]
    assert complete(*words, "--set", "train.s") == ["train.seed="]
    assert complete(*words, "--set", "engine.zero.o") == [
        *("engine.zero.overlap_comm=", "engine.zero.offload_optimizer.", "engine.zero.offload_param.")
    ]
    assert complete(*words, "--set", "data.bl") == ["data.blend="]
    assert complete(*words, "--set", "nothing.") == complete(*words, "--set", "train.seed=") == []


def test_explain_completes_sections_and_keys():
    assert complete("explain", "x.yml", "train.s") == ["train.seed"]


def test_backends_are_those_that_are_installed():
    assert "cpu" in complete("x.yml", "--backend", "")
    assert complete("conformance", "--backend", "cp") == ["cpu"]


def test_every_override_and_backend_of_a_command_is_completed():
    pending: list[click.Command] = [commands]
    seen = 0
    while pending:
        each = pending.pop()
        for parameter in each.params:
            is_override = str(parameter.metavar).endswith(".KEY=VALUE")
            if is_override or "--backend" in parameter.opts:
                seen += 1
                words = parameter.shell_complete(click.Context(each), "model." if is_override else "cp")
                assert [item.value for item in words][:1] == ["model.num_layers=" if is_override else "cpu"], each.name
        if isinstance(each, click.Group):
            names = each.list_commands(click.Context(each))
            pending += [inner for name in names if (inner := each.get_command(click.Context(each), name)) is not None]
    assert seen > 16


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_this_program(shell):
    result = CliRunner().invoke(command, [shell])
    assert result.exit_code == 0
    assert f"_PRETRAIN_COMPLETE={shell}_complete" in result.stdout
    assert shell == "fish" or "[.=]" in result.stdout  # no space after "model." and "model.num_layers="


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, **more}


def test_bash_completes_a_line(tmp_path):
    """In the bash of this machine, with the words as its readline splits them."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    program = tmp_path / "pretrain"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m pretrain.cli.main "$@"\n')
    program.chmod(0o755)
    script = """
        compopt() { echo "compopt $1 $2"; }; complete() { :; }
        eval "$(pretrain completion bash)"
        COMP_WORDS=(pretrain x.yml --set train.seed = 4 --set model.num_l); COMP_CWORD=7
        _pretrain_completion pretrain; echo "${COMPREPLY[@]}"
        COMPREPLY=(); COMP_WORDS=(pretrain run --set train.seed = 4 rec); COMP_CWORD=6
        _pretrain_completion pretrain; echo "${COMPREPLY[@]}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        [bash, "-c", script], check=False, capture_output=True, text=True, env=environment(PATH=path)
    )
    assert result.stdout.splitlines() == ["compopt -o nospace", "model.num_layers=", "compopt -o default", ""]
    assert result.stderr == ""


def test_an_error_while_completing_is_not_written_into_the_line(monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyCommands, "shell_complete", fail)
    for name, value in {"_PRETRAIN_COMPLETE": "bash_complete", "COMP_WORDS": "pretrain r", "COMP_CWORD": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr() == ("", "")


def test_completion_imports_neither_the_schema_nor_torch():
    lines = ["pretrain x.yml --set model.", "pretrain x.yml --backend ", "pretrain checkpoint ", "pretrain data "]
    check = (
        "import os, sys\nfrom pretrain.cli.main import main\n"
        "for line in sys.argv[1:]:\n"
        "    os.environ.update(_PRETRAIN_COMPLETE='bash_complete', COMP_WORDS=line, COMP_CWORD=str(line.count(' ')))\n"
        "    try:\n        main()\n    except SystemExit as end:\n        assert end.code == 0, line\n"
        "slow = {'pydantic', 'torch', 'yaml', 'numpy'} & {*sys.modules}\nsys.exit(str(slow) if slow else 0)\n"
    )
    result = subprocess.run([sys.executable, "-c", check, *lines], check=False, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert {"plain,model.num_layers=", "plain,cpu", "plain,convert", "plain,build"} <= set(result.stdout.splitlines())
