"""Checkpoints of other programs are recognized."""

from __future__ import annotations

import pytest

from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.foreign import foreign_checkpoint
from pretrain.errors import CheckpointError

FOREIGN = {
    "iter_0005000/mp_rank_00/model_optim_rng.pt": "a checkpoint of Megatron-LM in its old format",
    "release/mp_rank_00/model_optim_rng.pt": "a checkpoint of Megatron-LM in its old format",
    "global_step10/mp_rank_00_model_states.pt": "a checkpoint of DeepSpeed",
    "global_step10/zero_pp_rank_0_mp_rank_00_model_states.pt": "a checkpoint of DeepSpeed",
    "global_step10/layer_00-model_00-model_states.pt": "a checkpoint of GPT-NeoX or DeepSpeed's pipelines",
    "model.safetensors": "a model of Hugging Face",
    "pytorch_model.bin": "a model of Hugging Face",
}


@pytest.mark.parametrize(("file", "name"), FOREIGN.items())
def test_a_folder_is_recognized_by_its_files(tmp_path, file, name):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    assert foreign_checkpoint(tmp_path) == f"{name} ({file}), which this version cannot read"


def test_our_own_checkpoints_are_not_foreign(tmp_path):
    save = CheckpointFolder(tmp_path).save
    save(10, lambda directory: (directory / "common.pt").touch(), is_main=True, barrier=lambda: None)
    assert foreign_checkpoint(tmp_path) is None
    assert foreign_checkpoint(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["release", "", "5000"])
def test_the_error_without_checkpoints_says_what_the_folder_holds(tmp_path, text):
    (tmp_path / LATEST).write_text(text)
    with pytest.raises(CheckpointError, match=r"\nThe folder holds no checkpoint \(iter_\*\); name another\.$"):
        CheckpointFolder(tmp_path).latest()
    (tmp_path / "release" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt").touch()
    with pytest.raises(CheckpointError, match=r"\nThe folder holds a checkpoint of Megatron-LM in its old format"):
        CheckpointFolder(tmp_path).latest()
