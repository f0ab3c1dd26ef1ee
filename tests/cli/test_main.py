"""Dispatch of commands, and errors as a user sees them."""

from __future__ import annotations

import os
import subprocess
import sys
import types

import click
import pytest

import pretrain
from pretrain.cli import commands, main
from pretrain.errors import NotFiniteError, RecipeError


@click.command()
@click.argument("words", nargs=-1)
@click.option("--backend")
def run(words, backend):
    """Train."""
    click.echo(f"run {list(words)} {backend}")


@click.command()
@click.argument("error")
def explain(error):
    """Fail."""
    raise {
        "known": RecipeError("what\nallowed"),
        "nan": NotFiniteError("rank 1"),
        "interrupt": KeyboardInterrupt(),
        "bug": ZeroDivisionError(),
    }[error]


@click.group()
def data():
    """Token files."""


@data.command()
def build():
    """Build."""


@pytest.fixture(autouse=True)
def three_commands(monkeypatch):
    """Commands whose behaviour is known, in place of the real ones."""
    table = {"run": "Train.", "explain": "Fail.", "data": "Token files."}
    monkeypatch.setattr(commands, "COMMANDS", table)
    modules = {commands.module_of(name): types.SimpleNamespace(command=globals()[name]) for name in table}
    monkeypatch.setattr(commands.importlib, "import_module", modules.__getitem__)
    monkeypatch.delenv("PRETRAIN_TRACEBACK", raising=False)


@pytest.fixture
def call(capsys):
    """Call pretrain and return exit code, stdout and stderr."""

    def call_with(*arguments):
        with pytest.raises(SystemExit) as caught:
            main.main(arguments)
        return caught.value.code, *capsys.readouterr()

    return call_with


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--backend", "cpu", "a.yml"],
        ["--backend", "cpu", "a.yml"],
        ["a.yml", "--backend", "cpu"],
        ["--backend=cpu", "a.yml"],
    ],
)
def test_run_is_the_default_command(call, arguments):
    assert call(*arguments) == (0, "run ['a.yml'] cpu\n", "")


def test_a_file_of_any_name_is_a_recipe(call, tmp_path):
    (tmp_path / "recipe").touch()
    assert call(str(tmp_path / "recipe"))[1] == f"run [{str(tmp_path / 'recipe')!r}] None\n"


def test_a_command_wins_over_a_file_of_its_name(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert call("data", "build") == (0, "", "")


def test_a_misspelt_command_is_recognized(call):
    assert call("explian") == (
        2,
        "",
        "'explian' is neither a command nor a recipe file. Did you mean 'explain'?\nTry 'pretrain --help'.\n",
    )


@pytest.mark.parametrize("arguments", [["run", "--bakend", "cpu"], ["--bakend", "cpu"]])
def test_a_misspelt_option_is_recognized(call, arguments):
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert "No such option" in err
    assert "--backend" in err
    assert err.endswith("Try 'pretrain run --help'.\n")


def test_a_known_error_is_shown_as_it_is(call):
    assert call("explain", "known") == (2, "", "what\nallowed\n")


def test_what_another_attempt_may_not_meet_is_a_failure_as_under_a_launcher(call):
    assert call("explain", "nan") == (1, "", "rank 1\n")


def test_its_traceback_is_shown_on_demand(call, monkeypatch):
    monkeypatch.setenv("PRETRAIN_TRACEBACK", "1")
    code, _, err = call("explain", "known")
    assert code == 2
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("pretrain.errors.RecipeError: what\nallowed\n")


def test_an_interrupt_is_not_a_bug(call):
    code, out, err = call("explain", "interrupt")
    assert (code, out, err.strip()) == (130, "", "")


def test_a_bug_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        main.main(["explain", "bug"])


def test_the_version_is_shown(call):
    assert call("--version") == (0, f"pretrain {pretrain.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands_without_importing_them(call, arguments, monkeypatch):
    monkeypatch.setattr(commands.importlib, "import_module", None)
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: pretrain ")
    assert "Commands:\n  run      Train.\n  explain  Fail.\n  data     Token files.\n" in out


def test_every_command_has_its_module():
    program = (
        "import importlib.util\nfrom pretrain.cli.commands import COMMANDS, module_of\n"
        "assert all(importlib.util.find_spec(module_of(name)) for name in COMMANDS)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_help_imports_nothing_heavy():
    program = (
        "import sys\nfrom pretrain.cli.main import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n"
        "    print({'torch', 'megatron', 'rich', 'pydantic', 'numpy', 'yaml'} & set(sys.modules))\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown.endswith("set()\n")


@pytest.mark.full
def test_a_device_library_that_cannot_be_loaded_breaks_nothing_but_its_own_backend(tmp_path):
    """torch imports all of them when it is imported, unless TORCH_DEVICE_BACKEND_AUTOLOAD is 0."""
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nbroken = no_such_module:load\n")
    command = [sys.executable, "-m", "pretrain.cli.main", "backends"]
    environment = {name: value for name, value in os.environ.items() if name != "TORCH_DEVICE_BACKEND_AUTOLOAD"}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment | {"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 0, done.stderr
    assert "cpu" in done.stdout
