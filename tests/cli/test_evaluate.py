"""`pretrain evaluate`: the losses that the training prints, without training."""

from __future__ import annotations

import json
import shutil

import pytest

from cli.trained import call, contents, evaluations, settings, write_recipe
from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST

TP, PP = "parallel.tensor_model_parallel_size=2", "parallel.pipeline_model_parallel_size=2"
ZERO3 = ("engine={name: deepspeed, zero: {stage: 3}}",)
pytestmark = [pytest.mark.usefixtures("forked_python"), pytest.mark.xdist_group("evaluate")]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def run_dir(recipe):
    assert call(recipe, "--run-dir", recipe.parent / "run") == 0
    return recipe.parent / "run"


@pytest.fixture
def evaluate(capfd):
    """Evaluate; return the object that is printed."""

    def run(*arguments):
        capfd.readouterr()
        assert call("evaluate", *arguments, "--json") == 0
        return json.loads(capfd.readouterr().out)

    return run


def test_a_run_has_the_losses_that_it_printed_and_stays_as_it_is(evaluate, run_dir):
    before = contents(run_dir)
    found = evaluate(run_dir)
    assert {split: found[split] for split in ("valid", "test")} == evaluations(run_dir)
    assert (found["iteration"], found["iters"], found["global_batch_size"]) == (3, 2, 4)
    assert found["checkpoint"] == str(run_dir / "checkpoints" / "iter_0000003")
    assert contents(run_dir) == before


@pytest.mark.full
def test_a_recipe_evaluates_any_way_to_name_a_checkpoint(evaluate, recipe, run_dir):
    checkpoints = run_dir / "checkpoints"
    for path in (run_dir, checkpoints, checkpoints / "iter_0000003"):
        found = evaluate(recipe, "--load", path, "--split", "test")
        assert found["test"] == evaluations(run_dir)["test"]
        assert "valid" not in found
        assert evaluate(path)["test"] == evaluations(run_dir)["test"]
    named = settings(f"checkpoint.load={checkpoints}")
    assert evaluate(recipe, *named)["valid"] == evaluations(run_dir)["valid"]


@pytest.mark.full
def test_other_lengths_and_recipes_that_do_not_evaluate(evaluate, recipe, run_dir, capfd):
    longer = recipe.parent / "longer"
    assert call(recipe, "--run-dir", longer, *settings("evaluation.iters=3")) == 0
    assert evaluate(run_dir, "--iters", 3)["valid"] == evaluations(longer)["valid"]
    off = settings("evaluation={interval: 0}")
    assert evaluate(run_dir, *off, "--iters", 2)["valid"] == evaluations(run_dir)["valid"]


def test_a_launchers_flag_is_answered_where_there_is_an_option(capfd):
    assert call("evaluate", "recipe.yml", "--gpus", 2, "--hostfile", "hosts") == 2
    lines = capfd.readouterr().err.splitlines()
    assert "--gpus: here it is --nproc." in lines[0]
    assert lines[1] == "--hostfile: there is no such option."


def test_the_readable_form_is_a_line_for_each_split(run_dir, capfd):
    assert call("evaluate", run_dir) == 0
    out, err = capfd.readouterr()
    losses = evaluations(run_dir)
    assert out.splitlines() == [
        f"{name} at iteration 3 | loss {losses[split]['lm_loss']:.6f} | ppl {losses[split]['ppl']:.6g} | 8 samples of "
        "32 tokens"
        for name, split in (("validation", "valid"), ("test", "test"))
    ]
    assert err == f"checkpoint: {run_dir}/checkpoints/iter_0000003 (pretrain)\n"


LAYOUTS = {
    "PP": (PP,),
    "TP": (TP, "parallel.sequence_parallel=true"),
    "TP x PP, interleaved": (TP, PP, "model.num_layers=4", "parallel.virtual_pipeline_model_parallel_size=2"),
    "distributed optimizer": (
        *("parallel.use_distributed_optimizer=true", "parallel.overlap_grad_reduce=true"),
        "parallel.overlap_param_gather=true",
    ),
    "fp16": ("precision={dtype: fp16}",),
    "bf16, native index": ("precision.dtype=bf16", "data.index=native"),
    "DeepSpeed, ZeRO-3": ZERO3,
    "DeepSpeed, TP, bf16": (TP, "engine={name: deepspeed, zero: {stage: 1}}", "precision.dtype=bf16"),
    "saved elsewhere": ("checkpoint={save: SAVED}",),
}


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_and_engine_evaluates_as_its_training_did(name, evaluate, recipe, tmp_path):
    layout = [setting.replace("SAVED", str(tmp_path / "saved")) for setting in LAYOUTS[name]]
    assert call(recipe, "--run-dir", tmp_path / "run", *settings(*layout)) == 0
    found, expected = evaluate(tmp_path / "run"), evaluations(tmp_path / "run")
    for split in ("valid", "test"):
        assert found[split]["lm_loss"] == pytest.approx(expected[split]["lm_loss"], rel=1e-6)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("layout", [(TP,), (PP,), ZERO3], ids=["TP", "PP", "ZeRO-3"])
def test_a_checkpoint_is_evaluated_in_another_layout(layout, evaluate, run_dir):
    found = evaluate(run_dir, *settings(*layout))
    assert found["valid"]["lm_loss"] == pytest.approx(evaluations(run_dir)["valid"]["lm_loss"], rel=1e-6)


def test_a_checkpoint_of_another_program_is_evaluated_with_a_recipe_of_its_model(evaluate, recipe, run_dir, tmp_path):
    assert call("checkpoint", "convert", run_dir, tmp_path / "theirs", "--to", "megatron") == 0
    found = evaluate(recipe, "--load", tmp_path / "theirs")
    assert {split: found[split] for split in ("valid", "test")} == evaluations(run_dir)
    assert found["iteration"] == 3


def test_splits_with_files_of_their_own_are_those_that_are_named():
    from pretrain.cli.evaluate import _splits

    recipe = make_recipe(SMALLEST, ["data={train_data_path: a, valid_data_path: b}"])
    assert _splits(recipe, None) == ["valid"]
    with pytest.raises(RecipeError, match=r"no token file for the test\.\n.*--set data\.test_data_path=PATH"):
        _splits(recipe, "test")


def test_a_checkpoint_is_evaluated_by_the_recipe_of_its_run_and_by_no_other_nearby(evaluate, run_dir, tmp_path, capfd):
    saved = tmp_path / "saved"
    shutil.copytree(run_dir / "checkpoints", saved)
    (tmp_path / "recipe.yml").write_text("not: of this run")
    (saved / "owner.json").write_text(json.dumps({"run": "1", "run_dir": str(run_dir)}))
    found = evaluate(saved / "iter_0000003", "--split", "test")
    assert (found["test"], "valid" in found) == (evaluations(run_dir)["test"], False)
    assert call("evaluate", saved, "--load", run_dir) == 2
    assert f"{saved} names a checkpoint, and --load {run_dir} another.\n" in capfd.readouterr().err


def test_mistakes_are_errors_of_two_lines(recipe, run_dir, tmp_path, capfd):
    damaged = tmp_path / "damaged"
    shutil.copytree(run_dir / "checkpoints", damaged)
    file = damaged / "iter_0000003" / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    mistakes = {
        (recipe,): "names no checkpoint to evaluate (checkpoint.load).",
        (recipe, "--load", tmp_path / "absent"): "does not exist.",
        (tmp_path / "absent",): "there is neither a recipe nor a run directory of that name.",
        (recipe, "--load", recipe.parent): "has no checkpoint of a known format.",
        (tmp_path,): f"needs a recipe: pretrain evaluate RECIPE --load {tmp_path}",
        (recipe, "--load", damaged): "is damaged: its checksum has changed",
        (run_dir, *settings("model.num_layers=3")): "model.num_layers 2 (recipe: 3).",
        (run_dir, "--split", "test", *settings("data.split=90,10,0")): "90,10,0 leaves no document for the test.",
        (run_dir, *settings("data.split=100,0,0", "evaluation={interval: 0}")): "for validation and test.",
        (run_dir, "--nproc", 3): "is not a multiple of train.micro_batch_size 1 x data-parallel size 3",
    }
    for arguments, message in mistakes.items():
        assert call("evaluate", *arguments) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert message in err
        assert len(err.splitlines()) == 2, err
