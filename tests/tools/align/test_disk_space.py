"""Room for recordings on the disk."""

import errno
import os
import shutil
from types import SimpleNamespace

import pytest

from engine.tiny import tiny
from pretrain.errors import RunError
from pretrain.tools.align.recording.record_rank import naming_full_disk, recording_bytes, require_space


def test_more_steps_positions_and_layers_take_more():
    least = recording_bytes(tiny(), 1, 8, 64)

    assert recording_bytes(tiny(), 2, 8, 64) > least
    assert recording_bytes(tiny(), 1, 16, 64) > least
    assert recording_bytes(tiny("model.num_layers=8"), 1, 8, 64) > least


def test_too_little_room_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    require_space(tmp_path, [tiny()], 1, 8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1000))

    with pytest.raises(RunError, match=r"(?s)0.0 GB free.*--keep .*TMPDIR.*--positions or train.global_batch_size"):
        require_space(tmp_path, [tiny()], 1, 8)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        RuntimeError("I/O error: No space left on device"),
    ],
)
def test_a_disk_that_is_full_meanwhile_is_one_too(error):
    with pytest.raises(RunError, match="--keep"), naming_full_disk("here"):
        raise error


def test_another_error_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), naming_full_disk("here"):
        raise ZeroDivisionError
