"""A rank's look at itself."""

import threading
from contextlib import suppress

import pytest

from pretrain.report.hang.awaited_collective import CalledCollectives
from pretrain.report.hang.position import Position
from pretrain.report.hang.rank_state import ALIVE, ENDED, UNKNOWN, RankProcess, RankState, kept, own_state
from report.hang.ranks import called, state


def look(calls=(), position=None):
    """Look from another thread, as the watch does."""
    own, found = RankProcess.own(3), []

    def run():
        identity = {"rank": 3, "host": own.host, "pid": own.pid, "layers": 4}
        found.append(
            own_state(
                position or Position(),
                identity=identity,
                seconds=2.0,
                since=1.0,
                called=calls,
                groups={},
                neighbours=[own],
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def test_it_has_the_stacks_of_all_threads_the_main_one_first():
    seen = look()
    assert seen.stacks[0].thread == "MainThread"
    assert any(frame.function == "look" and frame.file.endswith("test_rank_state.py") for frame in seen.frames)
    assert seen.processes == {3: ALIVE}


def test_it_comes_back_from_a_file():
    for each in (look([called()]), state(1, called(), done=[called(number=4)], processes={0: ENDED})):
        assert RankState.from_json(each.to_json()) == each


def test_an_error_with_which_the_training_has_ended_is_told():
    position = Position()
    with suppress(ValueError), position.until_end():
        msg = "sample 4711 is damaged\nTake it out."
        raise ValueError(msg)
    assert look(position=position).error == "ValueError: sample 4711 is damaged"


def test_a_library_that_hangs_itself_is_left_alone_and_asked_once(monkeypatch):
    monkeypatch.setattr("pretrain.report.hang.awaited_collective._PATIENCE", 0.05)
    answer, asked = threading.Event(), []
    collectives = CalledCollectives(lambda: (asked.append(1), answer.wait(60))[:0])
    assert [collectives.latest(), collectives.latest()] == [[], []]
    answer.set()
    assert len(asked) == 1


def test_a_library_that_fails_is_left_out():
    assert CalledCollectives(lambda: 1 / 0).latest() == []


def test_a_librarys_collectives_are_in_order():
    first, second = called(called=1.0), called(called=2.0)
    assert CalledCollectives(lambda: [second, first]).latest() == [first, second]


def test_old_collectives_are_left_out():
    calls = [called(number=number, pending=number == 3) for number in range(1, 100)]
    assert [each.number for each in kept(calls)] == [3, 97, 98, 99]


@pytest.mark.parametrize(("change", "known"), [({"started": 1}, ENDED), ({"place": "elsewhere"}, UNKNOWN)])
def test_another_process_of_the_same_number_is_not_the_rank(change, known):
    own = RankProcess.own(0)
    values = {"rank": 0, "host": own.host, "pid": own.pid, "place": own.place, "started": own.started, **change}
    assert RankProcess(**values).state() == known
