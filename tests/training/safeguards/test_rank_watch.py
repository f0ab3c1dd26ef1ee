"""Switches of a process for the time of a training."""

import faulthandler
import os

import pytest

from pretrain.training.safeguards import rank_watch


@pytest.mark.parametrize(
    ("given", "size"),
    [({}, "2000"), ({"TORCH_FR_BUFFER_SIZE": "7"}, "7"), ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}, None)],
)
def test_a_setting_of_the_recorder_stays_under_its_older_name_too(monkeypatch, given, size):
    monkeypatch.setattr(os, "environ", dict(given))
    rank_watch.record_collectives()
    assert os.environ.get("TORCH_FR_BUFFER_SIZE") == size


def test_a_process_without_standard_error_trains(monkeypatch):
    """As a service without one, or in a notebook."""
    disabled = []
    monkeypatch.setattr(faulthandler, "is_enabled", lambda: False)
    monkeypatch.setattr(faulthandler, "disable", lambda: disabled.append(True))
    monkeypatch.setattr("sys.stderr", None)
    with rank_watch._shown_aborts():
        assert not disabled
    assert disabled


def test_two_starts_of_one_second_have_two_folders():
    assert rank_watch._start() != rank_watch._start()
