"""`pretrain align`: two recordings by processes of their own, and their comparison."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from cli.trained import call, write_recipe
from pretrain.cli.align import _is_recording

TWO_STAGES = "parallel.pipeline_model_parallel_size=2"
pytestmark = [pytest.mark.usefixtures("forked_python"), pytest.mark.xdist_group("align")]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("aligned"))


@pytest.fixture(scope="module")
def recording(recipe):
    assert call("align", recipe, "--record", recipe.parent / "recorded", "--steps", "1") == 0
    return recipe.parent / "recorded"


def test_two_sides_are_recorded_and_compared(recipe, tmp_path, capfd):
    page = tmp_path / "page.html"
    arguments = ("--set-against", TWO_STAGES, "--steps", "1", "--keep", tmp_path / "kept", "--html", page)

    assert call("align", recipe, *arguments, "--json") == 0

    found = json.loads(capfd.readouterr().out)
    assert found["aligned"]
    assert found["wrong_calls"] == found["not_compared"] == []
    assert [side["title"] for side in found["sides"]] == [
        "backend cpu, megatron, fp32",
        "backend cpu, megatron, fp32, pipeline 2",
    ]
    assert {each["position"] for each in found["compared"]} == {None, 0, 1, 2, 3}
    assert found["losses"][0][0] == pytest.approx(found["losses"][0][1], rel=1e-6)
    assert "<svg" in page.read_text()
    assert {folder.name for folder in (tmp_path / "kept").iterdir()} == {"first", "second"}


@pytest.mark.full
def test_a_recording_of_another_machine_is_compared_with_this_one(recipe, recording, capfd):
    assert call("align", recipe, "--against", recording, "--against-python", sys.executable) == 2
    assert "--against-python would have no effect" in capfd.readouterr().err

    assert call("align", recipe, "--against", recording) == 0
    assert "aligned: nothing differs by more than fp32 explains" in capfd.readouterr().out


@pytest.mark.full
def test_the_other_side_may_have_another_python_and_a_wrong_one_is_named(recipe, tmp_path, capfd):
    assert call("align", recipe, "--against-python", sys.executable, "--steps", "1") == 0

    assert call("align", recipe, "--against-python", tmp_path / "none", "--steps", "1") == 2
    assert "none cannot be started" in capfd.readouterr().err


@pytest.mark.full
def test_a_difference_is_exit_code_1(recipe, recording, tmp_path, capfd):
    other = shutil.copytree(recording, tmp_path / "other")
    rank = json.loads((other / "rank0" / "rank.json").read_text())
    rank["steps"][0]["loss"] *= 1.01
    (other / "rank0" / "rank.json").write_text(json.dumps(rank))

    assert call("align", recipe, "--against", other) == 1
    assert "differs at step 1, loss: loss differs by 0.01" in capfd.readouterr().out


def test_options_of_a_comparison_are_refused_where_one_side_is_recorded(recipe, tmp_path, capfd):
    assert call("align", recipe, "--record", tmp_path / "new", "--against", "cpu", "--keep", tmp_path) == 2

    assert "--record makes one side: --against, --keep would have no effect" in capfd.readouterr().err


def test_a_folder_with_files_is_not_recorded_into(recipe, tmp_path, capfd):
    (tmp_path / "file").touch()

    assert call("align", recipe, "--record", tmp_path) == 2
    assert "is not empty" in capfd.readouterr().err


def test_what_a_side_cannot_train_ends_both(recipe, capfd):
    assert call("align", recipe, "--set-against", "kernels.norm=none_such", "--steps", "1") == 2
    assert "no plugin has a kernel or kind 'none_such'" in capfd.readouterr().err


def test_sides_that_train_different_things_end_before_any_is_recorded(recipe, capfd):
    assert call("align", recipe, "--set-against", "model.num_layers=3") == 2

    assert capfd.readouterr().err.startswith("the sides train different things: model.num_layers")


def test_a_side_that_crashes_is_another_exit_code_than_sides_that_differ(recipe, monkeypatch, capfd):
    monkeypatch.setattr("pretrain.align.record_side.record_in_process", lambda *_, **__: 1)

    assert call("align", recipe) == 3
    assert "the first side was not recorded: nothing was compared" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "no/such"), "no/such holds no recording"),
        (("--against", "elsewhere"), "elsewhere"),
        (("--set-against", "checkpoint.load=x"), "--set-against checkpoint.load would have no effect"),
        (("--record", "x", "--json"), "--record makes one side: --json would have no effect"),
    ],
)
def test_what_would_have_no_effect_or_is_missing_is_refused(recipe, arguments, message, capfd):
    assert call("align", recipe, *arguments) == 2

    assert message in capfd.readouterr().err


def test_a_recording_has_its_own_steps(recipe, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name in ("cpu", "recorded"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recording.json").touch()

    assert call("align", recipe, "--against", "recorded", "--steps", "1") == 2
    assert "--against recorded is a recording: --steps would have no effect" in capfd.readouterr().err
    assert not _is_recording("cpu")  # an installed backend's name is one
