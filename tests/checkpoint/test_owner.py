"""No run saves where another one has: it could only replace and remove what that has saved."""

from __future__ import annotations

import shutil

import pytest

from pretrain.checkpoint.folder import OWNER, CheckpointFolder
from pretrain.checkpoint.owner import claim, require_own
from pretrain.errors import CheckpointError
from pretrain.recipe import make_recipe
from recipe.smallest import SMALLEST


@pytest.fixture
def shared(tmp_path):
    """A folder that recipes name."""
    return tmp_path / "shared"


@pytest.fixture
def recipe(shared):
    """Make a recipe that saves there."""
    return lambda *overrides: make_recipe(SMALLEST, (f"checkpoint.save={shared}", *overrides))


def run(tmp_path, name):
    (tmp_path / name).mkdir()
    return tmp_path / name


def train(recipe, run_dir, *iterations, resume=False):
    """Claim the folder and save into it, as a run does."""
    require_own(recipe, run_dir, resume=resume)
    claim(recipe, run_dir, resume=resume)
    folder = CheckpointFolder(type(run_dir)(recipe.checkpoint.save), recipe.checkpoint.keep)
    for iteration in iterations:
        folder.save(iteration, lambda directory: None, is_main=True, barrier=lambda: None)


def refused(recipe, run_dir, *, resume=False):
    with pytest.raises(CheckpointError) as caught:
        require_own(recipe, run_dir, resume=resume)
    first, second = str(caught.value).splitlines()
    assert second.startswith("Name another folder; or continue them: set checkpoint.load=")
    return first


def test_the_folder_of_another_run_is_refused_and_its_owner_named(recipe, shared, tmp_path):
    train(recipe(), run(tmp_path, "first"), 10, 20)
    refusal = f"checkpoint.save: {shared} has the checkpoints of another run ({tmp_path / 'first'}): 10, 20."
    assert refused(recipe(), None) == refusal
    assert refused(recipe("checkpoint.keep=1"), run(tmp_path, "second")) == refusal


def test_the_folder_of_a_run_without_checkpoints_is_refused(recipe, tmp_path):
    train(recipe(), run(tmp_path, "first"))
    assert refused(recipe(), run(tmp_path, "second")).endswith("/first): none yet.")


def test_the_run_directory_of_another_run_is_refused(tmp_path):
    first, plain = run(tmp_path, "first"), make_recipe(SMALLEST)
    claim(plain, first, resume=False)
    assert refused(make_recipe(SMALLEST, [f"checkpoint.save={first / 'checkpoints'}"]), run(tmp_path, "second"))


def test_a_folder_with_checkpoints_but_no_owner_is_refused(recipe, shared, tmp_path):
    CheckpointFolder(shared).save(10, lambda directory: None, is_main=True, barrier=lambda: None)
    assert refused(recipe(), run(tmp_path, "second")) == (
        f"checkpoint.save: {shared} has the checkpoints of another run: 10."
    )


def test_a_resumed_run_saves_into_its_own_folder(recipe, tmp_path):
    first = run(tmp_path, "first")
    train(recipe(), first, 10)
    train(recipe(), first, 20, resume=True)
    moved = first.rename(tmp_path / "moved")
    train(recipe(), moved, 30, resume=True)


def test_a_run_older_than_owner_files_can_be_resumed(recipe, shared, tmp_path):
    CheckpointFolder(shared).save(10, lambda directory: None, is_main=True, barrier=lambda: None)
    train(recipe(), run(tmp_path, "old"), 20, resume=True)
    assert refused(recipe(), run(tmp_path, "second"))


def test_a_run_that_loads_and_saves_in_one_folder_becomes_its_owner(recipe, shared, tmp_path):
    first = run(tmp_path, "first")
    train(recipe(), first, 10)
    both = recipe(f"checkpoint.load={shared}")
    train(both, run(tmp_path, "second"), 20)
    train(both, run(tmp_path, "third"), 30)
    # resumed, the first run would remove the others' checkpoints
    assert "(" + str(tmp_path / "third") + ")" in refused(recipe(), first, resume=True)


def test_finetuning_into_the_loaded_folder_is_refused(recipe, shared, tmp_path):
    train(recipe(), run(tmp_path, "first"), 10)
    assert refused(recipe(f"checkpoint.load={shared}", "checkpoint.finetune=true"), run(tmp_path, "second"))


def test_a_copied_run_directory_can_be_resumed(tmp_path):
    first, recipe = run(tmp_path, "first"), make_recipe(SMALLEST)
    claim(recipe, first, resume=False)
    copy = shutil.copytree(first, tmp_path / "copy")
    require_own(recipe, copy, resume=True)


def test_a_run_that_saves_nothing_needs_no_folder(recipe, shared, tmp_path):
    train(recipe(), run(tmp_path, "first"), 10)
    require_own(recipe("checkpoint.save=false"), tmp_path, resume=False)
    claim(recipe("checkpoint.save=false"), tmp_path, resume=False)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["first", "shared"]


def test_a_folder_that_another_run_has_claimed_meanwhile_is_refused(recipe, tmp_path):
    second = run(tmp_path, "second")
    require_own(recipe(), second, resume=False)
    train(recipe(), run(tmp_path, "first"), 10)
    with pytest.raises(CheckpointError, match="another run"):
        claim(recipe(), second, resume=False)


def test_an_unreadable_owner_file_counts_as_another_run(recipe, shared, tmp_path):
    first = run(tmp_path, "first")
    train(recipe(), first, 10)
    (shared / OWNER).write_text("{")
    assert refused(recipe(), run(tmp_path, "second"))
    require_own(recipe(), first, resume=True)
