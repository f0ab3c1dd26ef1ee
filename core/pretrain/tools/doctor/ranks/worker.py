"""A thread for what may never end: collectives, device calls, files on a network."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker:
    """One thread for all of it, since the current device belongs to a thread."""

    def __init__(self, device: torch.device | None) -> None:
        """Start the thread on the device of this rank."""
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, args=(device,), daemon=True, name="doctor worker").start()

    def start(self, call: Callable[[], Any]) -> Future[Any]:
        """Call it in the thread, after those before it."""
        future: Future[Any] = Future()
        self._calls.put((call, future))
        return future

    def _work(self, device: torch.device | None) -> None:
        if device is not None:
            torch.get_device_module(device).set_device(device)
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as exc:  # noqa: BLE001  whatever it is, also a library's sys.exit: a finding
                future.set_exception(exc)
