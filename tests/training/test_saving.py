"""What a run starts from, and that each iteration is saved once."""

from __future__ import annotations

import pytest

from pretrain.engine.protocol import Loaded
from pretrain.errors import CheckpointError
from pretrain.training.progress import Progress
from pretrain.training.saving import Saving, folder_of, start_from

pytestmark = pytest.mark.usefixtures("alone")


class FakeEngine:
    """Saves its progress as a file."""

    def __init__(self, notices=()):
        self.loaded = []
        self.notices = notices

    def save(self, directory, progress):
        (directory / "progress").write_text(repr(dict(progress)))

    def load(self, directory, *, weights_only):
        self.loaded.append((directory.name, weights_only))
        progress = {"iteration": int(directory.name[5:]), "consumed_samples": 80, "skipped_iterations": 1}
        return Loaded(progress=progress, notices=self.notices)


@pytest.fixture
def engine():
    return FakeEngine()


def save(recipe, run_dir, *iterations):
    saving = Saving(folder_of(recipe, run_dir), rank=0)
    for iteration in iterations:
        saving.save(FakeEngine(), Progress(iteration=iteration))


def test_progress_survives_a_round_trip():
    progress = Progress(iteration=3, consumed_samples=24, skipped_iterations=1)
    assert Progress.from_mapping(progress.to_mapping()) == progress
    assert Progress() == Progress(iteration=0, consumed_samples=0, skipped_iterations=0)


def test_a_new_run_starts_at_the_beginning(make, tmp_path, engine):
    save(make(), tmp_path, 10)  # of an earlier run; not asked for
    assert start_from(make(), engine, tmp_path, resume=False) == (Progress(), "")
    assert engine.loaded == []


def test_a_resumed_run_takes_its_own_latest(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20)
    progress, remark = start_from(make(), engine, tmp_path, resume=True)
    assert progress == Progress(iteration=20, consumed_samples=80, skipped_iterations=1)
    assert remark == f"resumed from {tmp_path / 'checkpoints' / 'iter_0000020'}"
    assert engine.loaded == [("iter_0000020", False)]


def test_what_came_of_loading_is_told(make, tmp_path):
    save(make(), tmp_path, 10)
    _, remark = start_from(make(), FakeEngine(["a notice", "another"]), tmp_path, resume=True)
    assert remark.splitlines()[1:] == ["a notice", "another"]


def test_a_resumed_run_without_a_checkpoint_says_so(make, tmp_path, engine):
    progress, remark = start_from(make(), engine, tmp_path, resume=True)
    assert (progress, remark) == (Progress(), "no checkpoint yet: started from the beginning")


@pytest.mark.parametrize("resume", [False, True])
def test_another_runs_checkpoint_is_continued(make, tmp_path, engine, resume):
    save(make(), tmp_path / "other", 10)
    recipe = make(f"checkpoint.load={tmp_path / 'other' / 'checkpoints'}")
    progress, remark = start_from(recipe, engine, tmp_path / "mine", resume=resume)
    assert progress.iteration == 10
    assert remark.startswith("continued from ")


def test_its_own_checkpoint_comes_before_the_given_one(make, tmp_path, engine):
    save(make(), tmp_path / "other", 10)
    recipe = make(f"checkpoint.load={tmp_path / 'other' / 'checkpoints'}")
    save(recipe, tmp_path / "mine", 30)
    assert start_from(recipe, engine, tmp_path / "mine", resume=True)[0].iteration == 30


def test_finetuning_takes_the_weights_alone(make, tmp_path, engine):
    save(make(), tmp_path / "other", 10)
    recipe = make(f"checkpoint.load={tmp_path / 'other' / 'checkpoints'}", "checkpoint.finetune=true")
    progress, remark = start_from(recipe, engine, tmp_path / "mine", resume=False)
    assert progress == Progress()
    assert remark.startswith("weights from ")
    assert engine.loaded == [("iter_0000010", True)]


def test_a_given_folder_without_checkpoint_is_an_error(make, tmp_path, engine):
    with pytest.raises(CheckpointError, match=r"^checkpoint\.load: .* holds no checkpoint .*\n"):
        start_from(make(f"checkpoint.load={tmp_path}"), engine, tmp_path / "mine", resume=False)


def test_a_resumed_run_reads_where_it_saves(make, tmp_path, engine):
    recipe = make(f"checkpoint.save={tmp_path / 'elsewhere'}")
    save(recipe, tmp_path / "mine", 20)
    assert (tmp_path / "elsewhere" / "iter_0000020").is_dir()
    assert start_from(recipe, engine, tmp_path / "mine", resume=True)[0].iteration == 20


def test_an_iteration_is_saved_once(make, tmp_path, engine):
    saving = Saving(folder_of(make(), tmp_path), rank=0)
    progress = Progress(iteration=20)
    assert saving.save(engine, progress) == tmp_path / "checkpoints" / "iter_0000020"
    assert saving.is_done(progress)
    progress.iteration = 21
    assert not saving.is_done(progress)


def test_what_was_just_loaded_is_not_saved_again(make, tmp_path, engine):
    saving = Saving(folder_of(make(), tmp_path), rank=0)
    saving.mark_loaded(Progress(iteration=20))
    assert saving.is_done(Progress(iteration=20))
