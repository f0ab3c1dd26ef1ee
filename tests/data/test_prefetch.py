"""Reading ahead changes nothing but the moment."""

import gc
import threading
import weakref
from contextlib import suppress

import pytest

from pretrain.data.prefetch import Prefetcher, prefetched


def numbers(count, seen):
    try:
        for number in range(count):
            seen.append(number)
            yield number
    finally:
        seen.append("closed")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_gives_everything_in_order(count):
    seen = []
    assert list(prefetched(numbers(count, seen))) == list(range(count))
    assert seen == [*range(count), "closed"]


def test_items_are_prefetched_up_to_the_limit():
    made = threading.Semaphore(0)

    def items():
        for number in range(10):
            made.release()
            yield number

    stream = prefetched(items())
    assert next(stream) == 0
    for _ in range(3):
        assert made.acquire(timeout=60)
    assert not made.acquire(timeout=0.1)
    stream.close()


def test_an_error_comes_in_its_place():
    def items():
        yield 1
        raise OSError("the file is damaged")

    stream = prefetched(items())
    assert next(stream) == 1
    with pytest.raises(OSError, match="damaged"):
        next(stream)


def test_iteration_stops_after_an_error_or_the_end():
    def items():
        yield 1
        raise OSError("the file is damaged")

    broken, short = Prefetcher(items()), Prefetcher(iter([1]))
    assert (next(broken), next(short)) == (1, 1)
    with pytest.raises(OSError, match="damaged"):
        next(broken)
    assert [[next(stream, "none") for _ in range(3)] for stream in (broken, short)] == [["none"] * 3] * 2


@pytest.mark.parametrize("asked", [False, True])
def test_an_error_holds_no_references(asked):
    class Item:
        pass

    def items(held):
        yield 1
        raise OSError(f"{held} is damaged")

    held = Item()
    alive = weakref.ref(held)
    stream = Prefetcher(map(lambda item, held=held: item, items("x")))
    del held
    next(stream)
    stream.close()
    gc.disable()
    try:
        if asked:
            with suppress(OSError):
                next(stream)
        del stream
        assert alive() is None
    finally:
        gc.enable()


def test_a_dropped_prefetcher_releases_its_items():
    closed = threading.Event()

    def items():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    stream = Prefetcher(items())
    next(stream)
    del stream
    assert closed.wait(60)


def test_a_closed_prefetcher_waits_for_nothing():
    stream = Prefetcher(iter(range(100)))
    stream.close()
    assert len(list(stream)) <= 2  # what was made before


def test_stopping_closes_the_items():
    seen = []
    stream = prefetched(numbers(10, seen))
    next(stream)
    stream.close()
    assert seen[-1] == "closed"
