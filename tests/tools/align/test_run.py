"""`pretrain align`: two recordings by processes of their own, and their comparison."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from cli.trained import call, write_recipe
from pretrain.cpu.backend import CpuBackend
from pretrain.errors import BackendError, CheckpointError, RecipeError, RunError
from pretrain.plugins.backend import Unavailable
from pretrain.recipe import make_recipe
from pretrain.tools.align.command import _is_recording
from pretrain.tools.align.run import Side, _require_comparable, require_ready, require_writable
from recipe.smallest import SMALLEST

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

    shown = capfd.readouterr()
    found = json.loads(shown.out)
    assert found["aligned"]
    assert found["notes"] == ["the recipes differ in parallel.pipeline_model_parallel_size 1 and 2"]
    assert "recorded 1 step\n" in shown.err  # without the folder, which is removed where it is not kept
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
def test_the_other_side_may_have_another_python_whose_installation_is_warned_of_if_it_is_this_one(recipe, capfd):
    assert call("align", recipe, "--against-python", sys.executable, "--steps", "1") == 0
    assert f"warning: {sys.executable} runs the same pretrain and torch as this inst" in capfd.readouterr().err


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

    assert "--record records one side: --against, --keep would have no effect" in capfd.readouterr().err


def test_a_folder_with_files_is_not_recorded_into(recipe, tmp_path, capfd):
    (tmp_path / "file").touch()

    assert call("align", recipe, "--record", tmp_path) == 2
    assert "is not empty" in capfd.readouterr().err


@pytest.fixture
def never_recorded(monkeypatch):
    """A test fails if a side is recorded."""
    monkeypatch.setattr("pretrain.tools.align.run.record_in_process", lambda *_, **__: pytest.fail("recorded"))
    monkeypatch.setattr("pretrain.tools.align.run.start_ranks", lambda *_, **__: pytest.fail("recorded"))


@pytest.mark.usefixtures("never_recorded")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set-against", "kernels.norm=none_such"), "no plugin has a kernel or kind 'none_such'"),
        (("--set-against", "model.num_layers=3"), "the sides train different things: model.num_layers"),
        (("--against-python", "/none/such"), "/none/such cannot be started"),
        (("--checkpoint-against", "/none/such"), "/none/such"),
        (("--html", "/dev/null/page.html"), "/dev/null/page.html cannot be written"),
        (("--html", "/dev"), "'/dev' is a directory"),
    ],
)
def test_a_mistake_of_the_second_side_ends_both_before_any_is_recorded(recipe, arguments, message, capfd):
    assert call("align", recipe, *arguments, "--steps", "1") == 2
    assert message in capfd.readouterr().err


@pytest.mark.usefixtures("never_recorded")
@pytest.mark.parametrize("option", ["--record", "--keep"])
def test_a_disk_without_room_is_found_before_any_is_recorded(recipe, tmp_path, option, monkeypatch, capfd):
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1000))

    assert call("align", recipe, option, tmp_path / "new", "--steps", "1") == 2
    assert "0.0 GB free" in capfd.readouterr().err


def test_a_side_that_crashes_is_another_exit_code_than_sides_that_differ(recipe, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("pretrain.tools.align.run.start_ranks", lambda *_: 1)
    monkeypatch.setattr("pretrain.tools.align.run.explain_in_process", lambda *_: 0)
    monkeypatch.setattr("pretrain.tools.align.run.record_in_process", lambda *_, **__: 1)

    assert call("align", recipe, "--record", tmp_path / "new") == 3
    assert call("align", recipe) == 3
    assert "the first side was not recorded: nothing was compared" in capfd.readouterr().err


@pytest.mark.parametrize("error", [KeyError("format"), MemoryError(), OSError("no file")])
def test_a_crash_of_the_comparison_is_that_exit_code_too(recipe, monkeypatch, error, capfd):
    monkeypatch.setattr("pretrain.tools.align.run.compare_sides", Mock(side_effect=error))

    assert call("align", recipe) == 3
    assert "Traceback" in capfd.readouterr().err


def test_a_mistake_has_no_traceback(recipe, monkeypatch, capfd):
    for error in (RunError("so"), FileNotFoundError(2, "so", "page")):
        monkeypatch.setattr("pretrain.tools.align.run.compare_sides", Mock(side_effect=error))
        assert call("align", recipe) == 2
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--against", "no/such"), "no/such is not a recording"),
        (("--against", "elsewhere"), "elsewhere"),
        (("--set-against", "checkpoint={load: x}"), "--set-against checkpoint.load would have no effect"),
        (("--record", "x", "--json"), "--record records one side: --json would have no effect"),
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


QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yml"
FIRST = Side(recipe=QUICKSTART)


def of(*overrides, **changes):
    return Side(recipe=QUICKSTART, overrides=overrides, **changes)


@pytest.mark.parametrize(
    ("second", "error", "message"),
    [
        (of("parallel.tensor_model_parallel_size=5"), RecipeError, "tensor_model_parallel_size"),
        (of(nproc=7), RecipeError, "7"),
        (of(backend="none_such"), BackendError, "'none_such' is not installed"),
        (of(checkpoint=Path("/none/such")), CheckpointError, "/none/such"),
        (of("checkpoint={load: /none/such}"), RunError, "--set-against checkpoint.load would have no effect"),
        (of("model.num_layers=3"), RunError, "train different things: model.num_layers"),
        (of("model.num_layers=3", "x.y=1", python=Path("python")), RunError, "different things: model.num_layers"),
    ],
)
def test_a_mistake_of_the_second_side_is_found(second, error, message):
    require_ready([FIRST], None)

    with pytest.raises(error, match=message):
        require_ready([FIRST, second], None)


def test_a_backend_without_a_device_is_found(monkeypatch):
    monkeypatch.setattr(CpuBackend, "availability", lambda _self: Unavailable("it is away"))

    with pytest.raises(BackendError, match="no usable device: it is away"):
        require_ready([FIRST], None)


def test_the_weights_of_the_recipe_are_those_of_the_first_side():
    with pytest.raises(CheckpointError, match="/none/such"):
        require_ready([of("checkpoint.load=/none/such")] * 2, None)


def test_a_page_that_cannot_be_written_is_found(tmp_path):
    require_writable(tmp_path / "new" / "page.html")
    (tmp_path / "file").touch()

    with pytest.raises(RunError, match=r"file is a file, not a folder.*\nName another"):
        require_writable(tmp_path / "file" / "page.html")


@pytest.mark.parametrize(
    "override", ["optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16", "optimizer.decoupled_lr=1"]
)
def test_what_updates_cannot_be_worked_out_of_is_refused_with_a_way_out(override):
    recipe = make_recipe(SMALLEST, [override, "optimizer.adam_beta2=0.9"])
    with pytest.raises(RunError, match=rf"cannot be compared: .*\n.*--set {override.partition('=')[0]}="):
        _require_comparable(recipe)


def test_experts_are_compared_in_fp32_alone(tmp_path):
    recipe = tmp_path / "experts.yml"
    recipe.write_text(json.dumps(SMALLEST))
    experts = ("model.num_experts=4", "model.add_bias_linear=false", "precision.dtype=bf16")
    with pytest.raises(RunError, match=r"precision\.dtype bf16 with model.num_experts cannot be compared"):
        require_ready([Side(recipe=recipe, overrides=experts)], None)
    in_fp8 = (*experts[:2], "precision.fp8=rowwise")
    with pytest.raises(RunError, match=r"fp8 rowwise with model.num_experts cannot .*\n.*--set precision.fp8=null"):
        _require_comparable(make_recipe(SMALLEST, in_fp8))


def test_what_is_not_compared_is_said_with_a_way_out():
    key, _, value = (override := "optimizer.name=muon").partition("=")
    with pytest.raises(RunError, match=rf"{key} {value} cannot be compared: .*\n.*--set {key}="):
        _require_comparable(make_recipe(SMALLEST, [override]))
