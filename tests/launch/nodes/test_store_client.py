"""A store that hangs, or is lost, behind a client that answers in time."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref

import pytest
from torch.distributed import DistError, HashStore

from pretrain.launch.nodes import store_client
from pretrain.launch.nodes.store_client import StoreClient, StoreSilenceError


class HangingStore:
    """Store that answers once `answers` is set; it counts its calls."""

    def __init__(self):
        self.answers = threading.Event()
        self.calls = 0

    def add(self, key, amount):
        self.calls += 1
        self.answers.wait(30)
        return amount


class LostStore:
    calls = 0

    def add(self, key, amount):
        self.calls += 1
        raise DistError("Connection reset by peer")


def test_answers_are_those_of_the_store():
    store = StoreClient(HashStore())
    inner = store.within("attempt 1")
    assert [store.add("n", 2), store.add("n", 0), inner.add("n", 1)] == [2, 2, 1]
    assert [store.check(["a"]), store.compare_set("a", "", "x"), store.get("a"), store.check(["a"])] == [
        False,
        b"x",
        b"x",
        True,
    ]


def test_a_silent_store_raises_and_may_answer_later(monkeypatch):
    monkeypatch.setattr(store_client, "_PATIENCE", 0.05)
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 0.01)
    hanging = HangingStore()
    store = StoreClient(hanging)
    for _ in range(3):
        with pytest.raises(StoreSilenceError):
            store.add("n", 1)
    hanging.answers.set()
    monkeypatch.setattr(store_client, "_SHORT_PATIENCE", 30.0)
    assert store.add("n", 7) == 7
    assert hanging.calls == 2  # questions that nobody waits for are not asked any more


def test_a_lost_store_is_let_go_with_its_client_without_a_garbage_collection():
    lost = LostStore()
    store, there = StoreClient(lost), weakref.ref(lost)
    gc.disable()
    try:
        with pytest.raises(DistError):
            store.add("n", 1)
        del lost, store
        deadline = time.monotonic() + 60
        while there() is not None and time.monotonic() < deadline:  # the thread ends
            time.sleep(0.01)
        assert there() is None
    finally:
        gc.enable()


def test_signals_are_handled_while_a_store_is_silent(monkeypatch):
    monkeypatch.setattr(store_client, "_PATIENCE", 30.0)
    store, before = StoreClient(HangingStore()), signal.getsignal(signal.SIGUSR2)

    def end(*_):
        raise SystemExit(9)

    signal.signal(signal.SIGUSR2, end)
    try:
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR2]).start()
        with pytest.raises(SystemExit):
            store.add("n", 1)
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_lost_store_is_not_asked_again():
    lost = LostStore()
    store = StoreClient(lost)
    for _ in range(3):
        with pytest.raises(DistError, match="Connection reset by peer"):
            store.add("n", 1)
    assert lost.calls == 1  # torch writes a trace each time
