"""One of two sides: what makes it comparable, and its ranks."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pretrain.errors import RecipeError, RunError
from pretrain.recipe import load_recipe
from pretrain.tools.align.run import Side, is_this_installation, run_pretrain

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yml"
TWO = ("parallel.tensor_model_parallel_size=2",)


@pytest.mark.parametrize(
    "override",
    [
        "schedule.lr_warmup_fraction=0.1",
        "model.hidden_dropout=0.1",
        "kernels.compile=layer",
    ],
)
def test_an_override_of_what_makes_sides_comparable_is_replaced(override):
    recipe = load_recipe(QUICKSTART, Side(recipe=QUICKSTART, overrides=(override,)).comparable())

    assert not recipe.schedule.lr_warmup_fraction
    assert recipe.model.hidden_dropout == 0.0


@pytest.mark.parametrize(
    ("overrides", "nproc", "ranks"),
    [((), None, 4), (("precision.dtype=bf16",), None, 4), ((), 2, 2), (TWO, None, None)],
    ids=["the same", "another dtype", "its own", "other parallel sizes"],
)
def test_the_second_side_has_the_ranks_of_the_first(overrides, nproc, ranks):
    first = Side(recipe=QUICKSTART, nproc=4)

    assert Side(recipe=QUICKSTART, overrides=overrides, nproc=nproc).with_ranks_of(first).nproc == ranks


def test_a_side_of_another_installation_may_have_keys_that_this_one_lacks():
    first = Side(recipe=QUICKSTART, nproc=2)
    second = Side(recipe=QUICKSTART, overrides=("train.of_a_newer_version=1",), python=Path("python"))
    divided = replace(second, overrides=(*second.overrides, *TWO))

    assert second.with_ranks_of(first).nproc == 2
    assert divided.with_ranks_of(first).nproc is None
    assert divided.load().model_parallel_size == 2
    assert "train.of_a_newer_version=1" in second.comparable()
    assert second.load_comparable().model.hidden_dropout == 0.0
    with pytest.raises(RecipeError, match="of_a_newer_version"):
        replace(second, python=None).load()


@pytest.mark.parametrize(
    "unknown", ["train.of_a_newer_version=1", "newer.section=1", "kernels.fallback=newer", "engine.name=newer"]
)
@pytest.mark.parametrize(
    "overrides",
    [
        ("model.num_query_groups=4", "model.num_attention_heads=8"),
        ("schedule.min_lr=1e-2", "optimizer.lr=1e-2"),
        ("model.num_layers=2", "model.num_layers=3"),
        (
            "engine.name=deepspeed",
            "engine.deepspeed_config.zero_optimization.stage=1",
        ),
    ],
    ids=["heads", "rates", "twice", "DeepSpeed's own"],
)
def test_what_this_installation_lacks_takes_no_other_override_away(overrides, unknown):
    known = Side(recipe=QUICKSTART, overrides=overrides).load()

    for given in ((unknown, *overrides), (*overrides, unknown)):
        assert Side(recipe=QUICKSTART, overrides=given, python=Path("python")).load() == known


def test_overrides_that_are_valid_only_together_are_kept():
    overrides = ("train.global_batch_size=6", "novel.key=1", "train.micro_batch_size=3")

    train = Side(recipe=QUICKSTART, overrides=overrides, python=Path("python")).load().train

    assert (train.global_batch_size, train.micro_batch_size) == (6, 3)


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
