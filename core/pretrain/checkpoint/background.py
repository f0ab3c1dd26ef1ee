"""Checkpoints that are written while the training goes on, one at a time.

Each rank writes on a thread (a forked process would inherit the device's context and locks), and the threads agree in
groups of their own: the checkpoint becomes complete while main threads wait, evaluate, or end with an error.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch.distributed as dist

from pretrain.checkpoint.agreement import AllRanksBarrier, between_hosts, first_of
from pretrain.errors import OtherRankError
from pretrain.plugins.collective_record import BESIDE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pretrain.checkpoint.folder import CheckpointFolder
    from pretrain.checkpoint.snapshot import Snapshot

# least timeout of ranks that wait, beside the steps, for the slowest writer and for the flush: torch's own of gloo
_WRITING_MINUTES = 30


@dataclass(slots=True)
class _Save:
    iteration: int
    started: float = field(default_factory=time.monotonic)
    thread: threading.Thread = field(init=False)
    error: BaseException | None = None
    seconds: float = 0.0


class BackgroundSaves:
    """Saves of a run beside its steps; called on the main thread, by all ranks at the same iterations."""

    def __init__(
        self, folder: CheckpointFolder, *, is_main: bool, notify: Callable[[str], None], timeout_minutes: int
    ) -> None:
        """Make the process groups: collective."""
        self._folder, self._is_main, self._notify = folder, is_main, notify
        self._tree = between_hosts(BESIDE, max(timeout_minutes, _WRITING_MINUTES))
        self._all_done = AllRanksBarrier(timeout_minutes)
        self._save: _Save | None = None
        self._has_waited = False

    def start(self, iteration: int, take: Callable[[Path], Snapshot]) -> None:
        """Copy the state to host memory by `take`, and begin to write it; an earlier save is waited for. Collective."""
        self.wait(for_iteration=iteration)
        save = _Save(iteration)
        snapshot = take(self._folder.begin(iteration, is_main=self._is_main, barrier=dist.barrier))
        # A daemon: a second Ctrl-C ends the process at once, as without a save.
        save.thread = threading.Thread(target=self._run, args=(save, snapshot), name="checkpoint", daemon=True)
        save.thread.start()
        self._save = save

    def poll(self) -> None:
        """Report a save that all ranks have ended, or raise its error; called after every iteration, never waits."""
        if self._save is not None and self._all_done.reached(is_ready=not self._save.thread.is_alive()):
            self.wait()

    def wait(self, *, for_iteration: int | None = None) -> None:
        """Wait until nothing is being written; `for_iteration` is what waits, of which the user is told once."""
        if self._save is None:
            return
        if for_iteration is not None and self._save.thread.is_alive() and not self._has_waited:
            self._has_waited = True
            self._notify(
                f"the checkpoint of iteration {for_iteration} waits until that of iteration {self._save.iteration} is "
                "written; with a longer checkpoint.save_interval it would not have to wait"
            )
        save = self._save
        save.thread.join()  # interrupted, it leaves the save to `finish`
        self._all_done.settled()
        self._save = None
        if save.error is not None:
            raise save.error
        self._notify_complete(save)

    def finish(self) -> None:
        """Wait, but report a failure instead of raising it: for a run that ends with an error, on this rank alone."""
        save, self._save = self._save, None
        if save is None:
            return
        save.thread.join()
        if save.error is None:
            self._notify_complete(save)
        else:
            self._notify(f"the checkpoint of iteration {save.iteration} is not complete: {save.error}")

    def _notify_complete(self, save: _Save) -> None:
        place = self._folder.named(save.iteration)
        self._notify(f"checkpoint: {place}, complete {save.seconds:.1f} s after its iteration")

    def _run(self, save: _Save, snapshot: Snapshot) -> None:
        try:
            snapshot.write(self._tree)
            self._publish(save.iteration)
        except BaseException as error:  # noqa: BLE001  raised again on the main thread
            save.error = error
        save.seconds = time.monotonic() - save.started

    def _publish(self, iteration: int) -> None:
        failed: Exception | None = None
        if self._is_main:
            try:
                self._folder.publish(iteration)
            except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for the answer
                failed = error
        problem = first_of(None if failed is None else str(failed) or type(failed).__name__, self._tree)
        if problem is not None:
            raise failed or OtherRankError(problem)
