"""`checkpoint.load` is checked before anything of it is read."""

from __future__ import annotations

import pytest

from engine import tiny
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.starting_checkpoint import require_start
from pretrain.errors import CheckpointError

COMPLETE = ("metadata.json", "common.pt", ".metadata")
OF_MEGATRON = ("mp_rank_00/model_optim_rng.pt",)


@pytest.fixture
def folder(tmp_path):
    """Make a folder whose latest checkpoint has these files."""

    def make(*files):
        for file in files:
            path = tmp_path / "iter_0000005" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (tmp_path / LATEST).write_text("5")
        return tmp_path

    return make


def refusal(path, own=None):
    with pytest.raises(CheckpointError) as error:
        require_start(str(path), own, tiny.tiny())
    return str(error.value)


def test_a_complete_checkpoint_is_accepted(folder):
    require_start(str(folder(*COMPLETE)), None, tiny.tiny())


def test_megatrons_own_folder_is_known_by_the_checkpoint_that_its_tracker_names(folder):
    assert "model_optim_rng.pt is damaged, or not a file of torch.save" in refusal(folder(*OF_MEGATRON))


def test_an_incomplete_checkpoint_names_the_missing_files(folder):
    refused = refusal(folder(*COMPLETE[1:]))
    assert "iter_0000005 is not a complete checkpoint: metadata.json is missing." in refused
    assert f"write another iteration into {folder() / LATEST}." in refused


def test_the_folder_that_was_meant_is_named(folder, tmp_path):
    inside = folder(*COMPLETE[1:]) / "iter_0000005"
    assert f"Name the folder around it, {tmp_path};" in refusal(inside)
    run = tmp_path.rename(tmp_path.parent / "checkpoints").parent
    assert f"Did you mean {run / 'checkpoints'}?" in refusal(run)


def test_the_folder_around_another_programs_checkpoint_is_not(folder):
    assert "Name the folder around it" not in refusal(folder(*OF_MEGATRON) / "iter_0000005")


def test_a_folder_that_the_run_fills_may_be_empty_and_no_other(tmp_path):
    require_start(str(tmp_path), CheckpointFolder(tmp_path), tiny.tiny())
    assert "holds no checkpoint" in refusal(tmp_path, CheckpointFolder(tmp_path / "other"))
