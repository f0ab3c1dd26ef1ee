"""`pretrain doctor` as a command: with a recipe and without one, its output and exit code."""

from __future__ import annotations

import json
import os
import re
import sys
import threading

import pytest
import yaml

from pretrain.cli.main import main
from pretrain.recipe import load_recipe
from pretrain.recipe.layout import lay_out
from pretrain.tools.doctor import examination
from pretrain.tools.doctor.command import EXAMPLE
from pretrain.tools.doctor.examination import NOTE
from pretrain.tools.doctor.ranks.step_sequence import RankOutcome
from recipe.smallest import SMALLEST
from tools.doctor.written_tokens import write_tokens

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def between(monkeypatch):
    """Replace the checks between ranks by one that returns this rank's findings; return what it was given."""
    given = {}

    def examine_between(own, board, plugins, device, recipe, *, start, backend_name):
        given.update(recipe=recipe, world=board.world, device=device, start=start)
        return RankOutcome(findings=tuple(own.judge({0: own.measure(None)})), reports=True)

    monkeypatch.setattr(examination, "examine_between", examine_between)
    return given


@pytest.fixture
def doctor(tmp_path, capsys, between):
    """Run the command with the smallest recipe, or others; return exit code, output and errors."""
    recipe, tokens = tmp_path / "recipe.yml", write_tokens(tmp_path / "corpus", range(200))
    recipe.write_text(yaml.safe_dump({**SMALLEST, "data": {"path": str(tokens)}, "evaluation": {"interval": 0}}))

    def run(*arguments, recipe=str(recipe)):
        with pytest.raises(SystemExit) as end:
            main(["doctor", *([recipe] if recipe else []), *arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    before = dict(os.environ)
    yield run
    os.environ.clear()  # the command has set the variables of a rank
    os.environ.update(before)


def test_a_recipe_that_can_be_trained_here(doctor, between):
    code, out, err = doctor()
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith("0 wrong: a training can start")
    assert "ok     kernel linear" in out
    assert between["recipe"].model.hidden_size == 64
    assert between["start"].recipe is between["recipe"]
    assert between["world"].world_size == 1


def test_without_a_recipe_no_files_are_looked_at_and_the_output_says_so(doctor, between):
    sizes = {"num_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 8}
    code, out, _ = doctor(*(f"--set=model.{key}={value}" for key, value in sizes.items()), recipe=None)
    assert code == 0
    assert NOTE in out.splitlines()[0]
    assert between["start"] is None
    assert between["recipe"].model.hidden_size == 32  # ranks are compared in its dtype


def test_json_has_the_findings_and_the_result(doctor, site):
    site.backend("fake", availability="Unavailable('no driver', 'Install it.')")
    code, out, _ = doctor("--backend", "fake", "--json")
    told = json.loads(out)
    assert (code, told["ok"]) == (1, False)
    device = next(finding for finding in told["findings"] if finding["check"] == "device")
    assert device == {
        "check": "device",
        "verdict": "wrong",
        "text": "backend 'fake' (pretrain-fake 1.0) has no usable device: no driver",
        "remedy": "Install it.",
        "ranks": [],
    }


def test_devices_that_cannot_be_counted_are_a_finding_too(doctor, site):
    counts = "FakeBackend.device_count = lambda self: 1 / 0"
    site.backend("fake", counts, availability="Unavailable('no driver', 'Install it.')")
    code, out, _ = doctor("--backend", "fake")
    assert code == 1
    assert "Install it." in out


def test_a_broken_plugin_of_kernels_is_a_finding(doctor, site):
    site.plugin("torn", "import a_library_that_is_absent")
    code, out, _ = doctor()
    assert code == 1
    assert "wrong  plugins" in out
    assert "a_library_that_is_absent" in out
    assert "1 wrong" in out.splitlines()[-1]
    assert "ok     kernel optimizer" in out  # those of the backend and the reference are tried


def test_a_check_that_does_not_end_is_named_on_the_only_rank(doctor, between, monkeypatch):
    """Everything found before it is shown, and no further call of the device is tried."""
    ended, left = threading.Event(), []

    def hang(recipe, world):
        ended.wait(120)
        return ()

    def leave(outcome, code):
        left.append(code)
        raise SystemExit(code)

    monkeypatch.setattr(examination, "examine_limits", hang)
    monkeypatch.setattr(examination.examine, "__kwdefaults__", {"timeout": 5.0})
    monkeypatch.setattr(RankOutcome, "leave", leave)
    code, out, _ = doctor()
    ended.set()
    assert (code, left) == (1, [1])
    assert "limits did not finish within 5 s" in out
    assert "ok     versions" in out
    assert between["device"] is None


def test_a_library_that_ends_the_process_is_a_finding(doctor, monkeypatch):
    monkeypatch.setattr(examination, "examine_limits", lambda recipe, world: sys.exit(1))
    code, out, _ = doctor()
    assert code == 1
    assert re.search("wrong  limits +SystemExit: 1", out)


def test_a_mistake_in_the_recipe_is_an_error_of_the_command(doctor):
    code, out, err = doctor("--set", "model.hidden_size=63")
    assert (code, out) == (2, "")
    assert "hidden_size" in err


def test_the_example_fits_usual_numbers_of_ranks():
    recipe = load_recipe(EXAMPLE)
    assert [ranks for ranks in (*range(1, 17), 24, 32, 48, 64, 128, 512, 1024) if not lay_out(recipe, ranks)] == []
