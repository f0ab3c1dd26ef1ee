"""The position of a main thread, and its copy for other processes."""

import errno
from contextlib import suppress

import pytest

from pretrain.report.hang import position as words
from pretrain.report.hang.position import Position, last_place, place_words, shared_memory


def test_a_step_moves_through_its_activities():
    position = Position()
    beats = position.beats
    with position.step(7):
        assert (position.iteration, position.activity) == (7, words.STEP)
        with position.during("optimizer"):
            assert position.activity == "optimizer"
        position.move(3, "", words.BACKWARD, 2)
    assert (position.activity, position.layer, position.direction) == (words.START, 0, "")
    assert position.beats > beats


def test_three_steps_have_a_median():
    position = Position()
    for iteration in range(3):
        assert position.median_step() is None
        with position.step(iteration):
            pass
    assert position.median_step() >= 0


@pytest.mark.parametrize("in_folder", [True, False])
def test_another_process_reads_where_a_rank_was_last(tmp_path, in_folder):
    with shared_memory(tmp_path / "0.place" if in_folder else None) as (memory, path):
        position = Position(memory)
        with position.step(12):
            position.move(5, "", words.FORWARD, 1)
            assert place_words(last_place(path), 8) == "layer 5 of 8, forward, iteration 12"
            position.move(0, words.EMBEDDING, words.BACKWARD, 1)
            assert place_words(last_place(path)) == "embedding, backward, iteration 12"
            position.move(0, "", words.FORWARD, 1)
            assert place_words(last_place(path)) == "its step, forward, iteration 12"
        with position.during("save"):
            assert place_words(last_place(path)) == "saving, iteration 12"
    assert bool(last_place(path)) == in_folder
    position.enter(words.LOG)  # memory that nobody reads any more can still be written


def test_a_full_disk_leaves_a_position_to_its_own_process(tmp_path, monkeypatch):
    """Memory on it would kill the process, by SIGBUS, with its first write."""

    def full(*_arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with shared_memory(tmp_path / "0.place") as (memory, path):
        Position(memory).enter(words.LOG)
    assert path == ""


def test_a_step_begins_outside_of_the_layers():
    position = Position()
    position.move(3, "", words.FORWARD, 1)  # as an evaluation does
    with position.step(7):
        assert (position.layer, position.direction) == (0, "")


@pytest.mark.parametrize("error", [None, ValueError("wrong")])
def test_what_follows_is_the_end_with_and_without_an_error(error):
    position = Position()
    with suppress(ValueError), position.until_end():
        if error:
            raise error
    assert position.activity == words.END


def test_what_is_no_position_is_none(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "odd").write_bytes(b"\x7f" * 24)
    assert [last_place(tmp_path / name) for name in ("short", "odd", "missing")] == [None] * 3


def test_an_activity_without_a_number_is_empty_elsewhere(tmp_path):
    position = Position()
    with position.during("a later one"):
        (tmp_path / "place").write_bytes(position.shared)
        assert last_place(tmp_path / "place").activity == ""
