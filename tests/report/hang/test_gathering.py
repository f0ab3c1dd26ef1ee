"""Files by which ranks find together."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from pretrain.report.hang.gathering import REPORT, Gathering, next_request_folder
from report.hang.ranks import called, processes, state


def headline(_states):
    return "head"


def gather(folder, rank, world_size, patience=5.0):
    gathering = Gathering(folder, rank, processes(world_size))
    gathering.ask()
    published = []
    wrote = gathering.write_report(
        state(rank, called()), headline, patience, lambda text, _states: published.append(text)
    )
    return wrote, published


def test_one_of_all_ranks_writes_the_report_with_all_of_them(tmp_path):
    results = {}
    threads = [
        threading.Thread(target=lambda rank=rank: results.update({rank: gather(tmp_path / "hang", rank, 3)}))
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [rank for rank, (wrote, _) in results.items() if wrote] == [0]
    assert results[0][1][0].startswith("head\n")
    assert "ranks 0-2: " in results[0][1][0]
    assert "MainThread" in (tmp_path / "hang" / REPORT).read_text()
    assert [path.name for path in (tmp_path / "hang").iterdir()] == [REPORT]  # it holds the rest


def test_a_later_rank_writes_it_without_rank_0(tmp_path):
    assert gather(tmp_path / "hang", 1, 2, patience=0.2)[0]
    assert "rank 0 is not there: it does not answer" in (tmp_path / "hang" / REPORT).read_text()


def test_of_many_ranks_few_list_the_folder_and_any_writes_where_those_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.report.hang.gathering._TURN", 0.0)
    listed, real = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: (listed.append(folder), real(folder))[1])
    monkeypatch.setattr(Gathering, "_period", 0.01)
    assert gather(tmp_path / "of 33", 33, 64, patience=0.1)[0]
    assert len(listed) == 2  # to write the report, and to remove what it holds
    assert gather(tmp_path / "of 32", 32, 64, patience=0.1)[0]
    assert len(listed) > 5


def test_a_rank_that_is_late_leaves_the_report_as_it_is(tmp_path):
    gather(tmp_path / "hang", 1, 2, patience=0.0)
    before = (tmp_path / "hang" / REPORT).read_text()
    assert gather(tmp_path / "hang", 0, 2) == (False, [])
    assert (tmp_path / "hang" / REPORT).read_text() == before


def test_a_rank_that_only_answers_is_in_the_report_and_is_not_waited_for(tmp_path):
    gathering = Gathering(tmp_path / "hang", 0, processes(2))
    gathering.ask()
    gathering.answer(state(0, called()))
    began = time.monotonic()
    assert gather(tmp_path / "hang", 1, 2, patience=60)[0]
    assert time.monotonic() - began < 60
    assert "ranks 0-1: " in (tmp_path / "hang" / REPORT).read_text()
    gathering.answer(state(0, called()))
    assert [path.name for path in (tmp_path / "hang").iterdir()] == [REPORT], "too late: nothing is left behind"


def test_a_report_that_another_rank_has_begun_is_left_to_it(tmp_path):
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "claimed").write_text("0")
    assert gather(tmp_path / "hang", 1, 2) == (False, [])
    assert not (tmp_path / "hang" / REPORT).exists()


def test_a_report_whose_writer_does_not_get_on_is_taken_over_by_one_rank(tmp_path):
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "claimed").write_text("0")
    ranks = [Gathering(tmp_path / "hang", rank, processes(3)) for rank in range(3)]
    for gathering in ranks[1:]:
        assert not gathering.write_report(state(gathering.rank, called()), headline, 0.1)
    assert ranks[1].writer() == "rank 0"
    assert ranks[1].take_over(headline, lambda *_: None)
    assert not ranks[2].take_over(headline, lambda *_: None)
    assert "ranks 1-2: " in (tmp_path / "hang" / REPORT).read_text()
    assert [path.name for path in (tmp_path / "hang").iterdir()] == [REPORT]


def test_a_rank_behind_many_others_does_not_look_who_is_there(tmp_path, monkeypatch):
    """A thousand ranks would ask one file system for a list of a thousand files, again and again."""
    gathering = Gathering(tmp_path / "hang", 9, processes(10))
    gathering.ask()
    for rank in range(5):
        (gathering.folder / f"rank-{rank}.json").touch()
    looks = []
    real = Gathering._there
    monkeypatch.setattr(Gathering, "_there", lambda own: [looks.append(1), *real(own)][1:])
    threading.Timer(0.3, (gathering.folder / REPORT).touch).start()
    assert not gathering.write_report(state(9), headline, 5.0)
    assert len(looks) == 1


@pytest.mark.parametrize("faster", [0, 1])
def test_of_a_slow_writer_and_the_one_in_its_place_the_faster_tells_the_report_and_writes_it(
    tmp_path, monkeypatch, faster
):
    """The other one has begun it, and finds no states any more."""
    (tmp_path / "hang").mkdir()
    ranks = [Gathering(tmp_path / "hang", rank, processes(3)) for rank in range(3)]
    for gathering in ranks:
        gathering._write_state("rank-", state(gathering.rank, called()))
    told, real = [], Gathering._states

    def tell(_text, states):
        told.append(sorted(states))

    first = [lambda: ranks[0]._write(headline, tell), lambda: ranks[1].take_over(headline, tell)]
    assert ranks[0]._claim("claimed")

    def slow(own):
        if own.rank != faster:
            assert first[faster]()
        return real(own)

    monkeypatch.setattr(Gathering, "_states", slow)
    assert not first[1 - faster]()
    assert told == [[0, 1, 2]]
    assert "ranks 0-2: " in (tmp_path / "hang" / REPORT).read_text()
    assert [path.name for path in (tmp_path / "hang").iterdir()] == [REPORT]


def test_a_report_that_was_told_is_not_told_again_while_it_is_written(tmp_path):
    (tmp_path / "hang").mkdir()
    for name in ("claimed", "told"):
        (tmp_path / "hang" / name).write_text("0")
    gathering = Gathering(tmp_path / "hang", 1, processes(2))
    assert not gathering.take_over(headline, lambda *_: None)
    assert gathering.writer() == "rank 0"


def test_a_state_that_cannot_be_read_counts_as_silence(tmp_path):
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "rank-0.json").write_text('{"rank": 0')
    gathering = Gathering(tmp_path / "hang", 1, processes(2))
    gathering.answer(state(1))
    assert set(gathering._states()) == {1}


def test_a_disk_that_fails_for_a_moment_has_no_report_yet(tmp_path, monkeypatch):
    def stale(_path):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(Path, "exists", stale)
    assert not Gathering(tmp_path, 0, processes(1)).wait_for_report(0.0)


def test_answers_to_signals_are_numbered_and_one_that_has_begun_is_joined(tmp_path):
    hang = tmp_path / "20260101-000000"
    first = next_request_folder(hang, 5.0)
    first.mkdir()
    assert next_request_folder(hang, 5.0) == first
    (first / REPORT).touch()
    assert next_request_folder(hang, 5.0).name == "20260101-000000-asked-2"
