"""Many players in few processes: a thread each, the first one in a process of its own; all are told what to do."""

from __future__ import annotations

import os
import queue
import resource
import threading
import time
import traceback
from concurrent.futures import Future
from multiprocessing import get_context
from typing import Protocol

from benchmarks.scale.sockets import counts

COUNT = "count"  # what a process is asked for after an act
_SETTLING = 0.2  # seconds until the kernel has had the acknowledgements of the last bytes
_STACK = 512 * 1024  # bytes of a thread's stack, which are not taken before they are used


class Player(Protocol):
    """One launcher or rank; made in its thread, where all of its acts are called, too."""

    ACTS: tuple[str, ...]

    def __init__(self, place: int, number: int, port: int) -> None: ...


class Crowd:
    """Players `kind(place, number, port)`, `each` of them in a process; a context that ends their processes."""

    def __init__(self, kind: type[Player], number: int, port: int, each: int) -> None:
        self._forked, self._pipes = [], []
        context = get_context("fork")  # one import for all
        for places in [range(1), *(range(first, min(first + each, number)) for first in range(1, number, each))]:
            ours, theirs = context.Pipe()
            self._pipes.append(ours)
            arguments = (theirs, list(self._pipes), kind, places, number, port)
            process = context.Process(target=_play, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._forked.append(process)
        self._number, self._before = number, {"bytes": 0, "requests": 0}

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_error: object) -> None:
        for process in self._forked:
            process.kill()
        for process in self._forked:
            process.join()

    def act(self, name: str) -> dict[str, object]:
        """Let all players call a method; return its seconds, and what the store had to do with it.

        The seconds are those until the last one is ready. `sockets` are the most of the first process, which has one
        player, and those of all by player; `returned` what the first one returned.
        """
        began = time.perf_counter()
        for pipe in self._pipes:
            pipe.send(name)
        answers = [pipe.recv() for pipe in self._pipes]
        seconds = time.perf_counter() - began
        time.sleep(_SETTLING)
        for pipe in self._pipes:
            pipe.send(COUNT)  # now that all are ready: the process with the store may have been so before the others
        answers = [answer | pipe.recv() for answer, pipe in zip(answers, self._pipes, strict=True)]
        if problem := next((each["error"] for each in answers if each["error"]), None):
            raise RuntimeError(f"{name} of {self._number} players:\n{problem}")
        now = {name: sum(each[name] for each in answers) for name in self._before}
        done = {name: now[name] - self._before[name] for name in now}
        self._before = now
        return {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(sum(each["cpu"] for each in answers), 2),
            "store_bytes": done["bytes"],
            "store_requests": done["requests"],
            "sockets_of_first": answers[0]["sockets"],
            "sockets_each": round(sum(each["sockets"] for each in answers) / self._number, 1),
            "returned": answers[0]["returned"],
        }


def _play(pipe, inherited: list, kind: type[Player], places: range, number: int, port: int) -> None:
    for other in inherited:  # so that all see the end of the process that they obey
        other.close()
    threading.stack_size(_STACK)
    asked: dict[int, queue.SimpleQueue] = {}
    for place in places:
        asked[place] = queue.SimpleQueue()
        threading.Thread(target=_answer, args=(asked[place], kind, place, number, port), daemon=True).start()
    while True:
        try:
            name = pipe.recv()
        except EOFError:
            os._exit(0)
        if name == COUNT:
            pipe.send(counts(port))
            continue
        before = _cpu()
        answers = [Future() for _ in places]
        for place, answer in zip(places, answers, strict=True):
            asked[place].put((name, answer))
        problems = [problem for answer in answers if (problem := answer.result()[1])]
        returned = answers[0].result()[0]
        pipe.send({"cpu": _cpu() - before, "returned": returned, "error": next(iter(problems), None)})


def _answer(asked: queue.SimpleQueue, kind: type[Player], place: int, number: int, port: int) -> None:
    player = None
    while True:
        name, answer = asked.get()
        try:
            player = player or kind(place, number, port)
            answer.set_result((getattr(player, name)(), None))
        except BaseException:  # noqa: BLE001  shown where all answers are read
            answer.set_result((None, traceback.format_exc()))


def _cpu() -> float:
    return sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
