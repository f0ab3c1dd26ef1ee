"""A run starts from its latest checkpoint or the one that it names, and saves each iteration once."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata

from pretrain.checkpoint import checksums, storage
from pretrain.checkpoint.contents import Loaded
from pretrain.checkpoint.folder import LATEST
from pretrain.checkpoint.stored_folder import folder_of_run
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.formats.megatron_writer import BACKEND_JSON
from pretrain.training.progress import Progress
from pretrain.training.saving import Saving, start_from

pytestmark = pytest.mark.usefixtures("alone")


class FakeEngine:
    """Saves its progress as a file."""

    def __init__(self, notices=()):
        self.loaded = []
        self.notices = notices

    def save(self, directory, progress):
        (directory / "progress").write_text(repr(dict(progress)))
        torch.save({"format": 3, "progress": dict(progress), "model": {}}, directory / "common.pt")
        (directory / "metadata.json").write_bytes(BACKEND_JSON)
        (directory / ".metadata").write_bytes(pickle.dumps(Metadata({})))
        checksums.write(directory, {})

    def load(self, directory, *, weights_only):
        storage.opened(directory)
        self.loaded.append((directory.name, weights_only))
        progress = {"iteration": int(directory.name[5:]), "consumed_samples": 80, "skipped_iterations": 1}
        return Loaded(progress=progress, notices=self.notices)


@pytest.fixture(autouse=True)
def files_of_fake_engines(monkeypatch):
    """Let the storage write and read what a FakeEngine has."""
    monkeypatch.setattr(storage, "save", lambda engine, directory, progress, send: engine.save(directory, progress))
    monkeypatch.setattr(storage, "load", lambda engine, directory, **options: engine.load(directory, **options))


@pytest.fixture
def engine():
    return FakeEngine()


def save(recipe, run_dir, *iterations):
    saving = Saving(folder_of_run(recipe, run_dir), rank=0)
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


def test_a_resumed_run_loads_its_own_latest_checkpoint(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20)
    progress, remark = start_from(make(), engine, tmp_path, resume=True)
    assert progress == Progress(iteration=20, consumed_samples=80, skipped_iterations=1)
    assert remark == f"resumed from {tmp_path / 'checkpoints' / 'iter_0000020'}"
    assert engine.loaded == [("iter_0000020", False)]


def test_notices_of_loading_are_reported(make, tmp_path):
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


def test_finetuning_loads_the_weights_only(make, tmp_path, engine):
    save(make(), tmp_path / "other", 10)
    recipe = make(f"checkpoint.load={tmp_path / 'other' / 'checkpoints'}", "checkpoint.finetune=true")
    progress, remark = start_from(recipe, engine, tmp_path / "mine", resume=False)
    assert progress == Progress()
    assert remark.startswith("weights from ")
    assert engine.loaded == [("iter_0000010", True)]


def test_a_given_folder_without_checkpoint_is_an_error(make, tmp_path, engine):
    with pytest.raises(CheckpointError, match=r"^checkpoint\.load: .* holds no checkpoint .*\n"):
        start_from(make(f"checkpoint.load={tmp_path}"), engine, tmp_path / "mine", resume=False)


def test_the_error_of_a_damaged_checkpoint_names_the_newest_intact_one(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20, 30)
    folder = tmp_path / "checkpoints"
    for iteration in (20, 30):
        (folder / f"iter_{iteration:07d}" / "progress").write_text("something else")
    with pytest.raises(DamageError) as caught:
        start_from(make(), engine, tmp_path, resume=True)
    damaged, offer = str(caught.value).splitlines()
    assert damaged.startswith(f"{folder}/iter_0000030/progress is damaged: ")
    assert offer == (f"The newest intact checkpoint is iteration 10: write 10 into {folder / LATEST}, and start again.")
    (folder / LATEST).write_text("10")
    assert start_from(make(), engine, tmp_path, resume=True)[0].iteration == 10


def test_a_checkpoint_of_an_abandoned_part_is_offered_last(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20, 30)
    folder = tmp_path / "checkpoints"
    (folder / LATEST).write_text("10")
    save(make(), tmp_path, 15)
    (folder / "iter_0000015" / "progress").write_text("something else")
    with pytest.raises(DamageError, match="The newest intact checkpoint is iteration 10: "):
        start_from(make(), engine, tmp_path, resume=True)
    (folder / "iter_0000010" / "progress").write_text("something else")
    with pytest.raises(DamageError, match="The newest intact checkpoint is iteration 30: "):
        start_from(make(), engine, tmp_path, resume=True)


def test_all_ranks_do_what_the_first_one_sees(make, tmp_path, engine, monkeypatch):
    """On a shared file system the others may not see a new file yet, and would wait in another collective."""
    save(make(), tmp_path, 10)
    sent = []
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)

    class OfOthers:
        def first_of(self, value):  # of rank 0, which sees no checkpoint
            sent.append(value)
            return [None, None]

    monkeypatch.setattr("pretrain.collectives.tree_of_world", OfOthers)
    progress, remark = start_from(make(), engine, tmp_path, resume=True)
    assert (progress.iteration, engine.loaded) == (0, [])
    assert "no checkpoint yet" in remark
    assert sent == [[None, None]]


def test_a_damaged_latest_file_names_the_newest_intact_one(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20)
    tracker = tmp_path / "checkpoints" / LATEST
    tracker.write_text(tracker.read_text().replace("20", "10", 1))
    with pytest.raises(DamageError, match=rf"{LATEST} is damaged: .*\nThe newest intact checkpoint is iteration 20: "):
        start_from(make(f"checkpoint.load={tmp_path}/checkpoints"), engine, tmp_path / "mine", resume=False)


def test_the_damaged_checkpoint_is_not_read_a_second_time_for_the_advice(make, tmp_path, engine, monkeypatch):
    save(make(), tmp_path, 10, 20)
    (tmp_path / "checkpoints" / "iter_0000020" / "progress").write_text("something else")
    opened, real = [], storage.opened
    monkeypatch.setattr(storage, "opened", lambda directory: opened.append(directory.name) or real(directory))
    with pytest.raises(DamageError, match="The newest intact checkpoint is iteration 10: "):
        start_from(make(), engine, tmp_path, resume=True)
    assert opened == ["iter_0000020", "iter_0000010"]


def test_the_error_says_that_no_checkpoint_is_intact(make, tmp_path, engine):
    save(make(), tmp_path, 10)
    (tmp_path / "checkpoints" / "iter_0000010" / "progress").unlink()
    with pytest.raises(DamageError, match=r"progress is missing\.\nNo checkpoint in .* is intact: restore a copy, or"):
        start_from(make(), engine, tmp_path, resume=True)


def test_exchanged_folders_are_to_be_renamed_and_not_called_damaged(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20)
    folder = tmp_path / "checkpoints"
    for name, other in (("iter_0000010", "spare"), ("iter_0000020", "iter_0000010"), ("spare", "iter_0000020")):
        (folder / name).rename(folder / other)
    with pytest.raises(DamageError, match=r"holds iteration 10, .* 20\.\nRename it after the iteration in it\.$"):
        start_from(make(), engine, tmp_path, resume=True)


def test_a_checkpoint_without_checksums_is_offered_if_no_other_is_intact(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20, 30)
    folder = tmp_path / "checkpoints"
    for iteration, kind in ((10, 2), (20, 3)):
        directory = folder / f"iter_{iteration:07d}"
        (directory / checksums.FILE).unlink()
        torch.save({"format": kind, "progress": {"iteration": iteration}}, directory / "common.pt")
    (folder / "iter_0000030" / "progress").unlink()
    with pytest.raises(DamageError, match=r"\n.* Iteration 10 has none .*: to try it, write 10 into "):
        start_from(make(), engine, tmp_path, resume=True)


def test_a_resumed_run_does_not_start_over_if_it_has_checkpoints(make, tmp_path, engine):
    save(make(), tmp_path, 10, 20)
    (tmp_path / "checkpoints" / LATEST).unlink()
    with pytest.raises(CheckpointError, match=rf"has checkpoints, 10, 20, but no {LATEST}\.\nWrite the number"):
        start_from(make(), engine, tmp_path, resume=True)
    assert start_from(make(), engine, tmp_path, resume=False) == (Progress(), "")


def test_a_single_checkpoint_needs_no_latest_file(make, tmp_path, engine):
    save(make(), tmp_path, 10)
    (tmp_path / "checkpoints" / LATEST).unlink()
    assert start_from(make(), engine, tmp_path, resume=True)[0].iteration == 10


@pytest.mark.parametrize("load", ["both", "link"])
def test_one_folder_to_load_from_and_to_save_into_may_be_empty_at_first(make, tmp_path, engine, load):
    """As in repeated scripts for Megatron-LM."""
    (tmp_path / "link").symlink_to(tmp_path / "both")
    recipe = make(f"checkpoint.load={tmp_path / load}", f"checkpoint.save={tmp_path / 'both'}")
    progress, remark = start_from(recipe, engine, tmp_path / "first", resume=False)
    assert (progress, remark) == (Progress(), f"{tmp_path / load}: no checkpoint yet: started from the beginning")
    save(recipe, tmp_path / "first", 10)
    assert start_from(recipe, engine, tmp_path / "second", resume=False)[0].iteration == 10


@pytest.mark.parametrize(
    ("given", "proposed"),
    [
        ("other", r"Did you mean .*/other/checkpoints\?$"),
        ("other/checkpoints/iter_0000010", "Name the folder around it"),
    ],
)
def test_a_wrong_folder_near_the_right_one_gets_a_suggestion(make, tmp_path, engine, given, proposed):
    save(make(), tmp_path / "other", 10)
    with pytest.raises(CheckpointError, match=rf"^checkpoint\.load: .* holds no checkpoint .*\n{proposed}"):
        start_from(make(f"checkpoint.load={tmp_path / given}"), engine, tmp_path / "mine", resume=False)


def test_another_programs_checkpoint_is_recognized(make, tmp_path, engine):
    (tmp_path / "release" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt").touch()
    (tmp_path / LATEST).write_text("release")
    with pytest.raises(DamageError, match=r"model_optim_rng\.pt is damaged, or not a file of torch\.save"):
        start_from(make(f"checkpoint.load={tmp_path}"), engine, tmp_path / "mine", resume=False)


def test_a_resumed_run_reads_where_it_saves(make, tmp_path, engine):
    recipe = make(f"checkpoint.save={tmp_path / 'elsewhere'}")
    save(recipe, tmp_path / "mine", 20)
    assert (tmp_path / "elsewhere" / "iter_0000020").is_dir()
    assert start_from(recipe, engine, tmp_path / "mine", resume=True)[0].iteration == 20


def test_an_iteration_is_saved_once(make, tmp_path, engine):
    saving = Saving(folder_of_run(make(), tmp_path), rank=0)
    progress = Progress(iteration=20)
    assert saving.save(engine, progress) == str(tmp_path / "checkpoints" / "iter_0000020")
    assert saving.is_done(progress)
    progress.iteration = 21
    assert not saving.is_done(progress)


def test_a_checkpoint_that_was_just_loaded_is_not_saved_again(make, tmp_path, engine):
    saving = Saving(folder_of_run(make(), tmp_path), rank=0)
    saving.mark_loaded(Progress(iteration=20))
    assert saving.is_done(Progress(iteration=20))
