"""A line to a store never makes its user wait for longer than it says."""

import threading
import time

import pytest
import torch.distributed as dist

from pretrain.tools.doctor.ranks.status_board import BoardStore, StoreLostError


def connected(line):
    while not line.connected:
        time.sleep(0.001)
    return line


def test_what_was_sent_is_there_for_the_next_question():
    line = BoardStore(dist.HashStore)
    line.send("key", "text")
    assert connected(line).ask(lambda store: store.get("key"), 5) == b"text"


def test_a_store_that_is_not_reached_yet_is_not_lost():
    come = threading.Event()
    line = BoardStore(lambda: come.wait() and dist.HashStore())
    with pytest.raises(StoreLostError):
        line.ask(lambda store: store.num_keys(), 5)
    assert not line.lost
    come.set()
    assert connected(line).ask(lambda store: store.num_keys(), 5) == 0


def test_a_store_that_stops_answering_is_lost():
    stopped = threading.Event()
    line = connected(BoardStore(dist.HashStore))
    with pytest.raises(StoreLostError, match=r"no answer within 0.05 s"):
        line.ask(lambda _: stopped.wait(), 0.05)
    begun = time.monotonic()
    with pytest.raises(StoreLostError):
        line.ask(lambda store: store.num_keys(), 60)
    assert time.monotonic() - begun < 60  # at once, on a busy machine too
    stopped.set()


def test_a_store_that_answers_late_is_found_again():
    stopped = threading.Event()
    line = connected(BoardStore(dist.HashStore))
    with pytest.raises(StoreLostError):
        line.ask(lambda _: stopped.wait(), 0.05)
    stopped.set()
    while line.lost:
        time.sleep(0.001)
    assert line.ask(lambda store: store.num_keys(), 5) == 0


def test_a_store_that_cannot_be_reached_or_fails_is_lost_with_the_reason():
    def refuse():
        raise OSError("unknown host\nand more")

    refused, failing = BoardStore(refuse), connected(BoardStore(dist.HashStore))
    with pytest.raises(StoreLostError, match="connection closed"):
        failing.ask(lambda _: (_ for _ in ()).throw(OSError("connection closed")), 5)
    while not refused.lost:
        time.sleep(0.001)
    assert refused.lost == "unknown host"
