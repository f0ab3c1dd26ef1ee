"""One training with a fault, from its first command to the one that ends it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from chaos.bounded_command import PERIOD
from chaos.fault_outcome import FaultOutcome
from chaos.planted import Kind, Planted
from chaos.scene import Scene, checkpoint_folder
from chaos.tiny_training import BEFORE
from pretrain.launch.world import LOCALHOST, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.bounded_command import BoundedCommand, End
    from chaos.fault import Fault
    from chaos.tiny_training import TinyTraining


class FaultTrial:
    """A training in a folder of its own."""

    def __init__(self, training: TinyTraining, folder: Path, fault: Fault | None, limit: float) -> None:
        """Describe it.

        Args:
            training: what is trained.
            folder: absent yet; outputs and the run directory come there.
            fault: what is done; None: nothing.
            limit: seconds that a command may take.
        """
        self._training, self._fault, self._folder, self._limit = training, fault, folder, limit
        signs, run_dir = folder / "signs", folder / "run"
        signs.mkdir(parents=True)
        self._scene = Scene(
            run_dir=run_dir,
            planted=Planted(
                kind=fault.planted if fault else Kind.NONE,
                rank=fault.rank(training.nproc) if fault else None,
                signs=signs,
                after=checkpoint_folder(run_dir).directory(BEFORE),
            ),
            ranks=training.nproc,
        )
        self._came = fault is None
        self._given = 0
        self._nodes = self._options_of_nodes(fault.nodes if fault else 1)
        self._before: tuple[int, ...] = ()
        self._others: list[End] = []
        self._killed: list[End] = []
        self._seen = True

    def run(self) -> FaultOutcome:
        """Give the command until it ends well, or as often as the fault may need it."""
        ends: list[End] = []
        states: list[dict[int, str]] = []
        temporary = self._temporary()
        for _ in range(len(self._fault.endings) if self._fault else 1):
            ends.append(self._round(is_first=not ends))
            states.append(self._scene.states())
            if ends[-1].exit_code in {0, None} or not self._came:
                break
            self._scene.output = ends[-1].output
            if self._fault and self._fault.repair:
                self._fault.repair(self._scene)
        return FaultOutcome(
            came=self._came,
            ends=tuple(ends),
            others=tuple(self._others),
            killed=tuple(self._killed),
            before=self._before,
            states=tuple(states),
            logged=self._scene.logged(),
            flaws=(*self._scene.flaws(), *(f"{name} is left" for name in sorted(self._temporary() - temporary))),
            seen=self._seen,
        )

    def _temporary(self) -> set[Path]:
        """Return the folders of launchers; a backend, torch and others keep a cache there."""
        return {entry for name in ("ranks", "new") for entry in self._training.temporary.glob(f"pretrain-{name}-*")}

    def _round(self, *, is_first: bool) -> End:
        """Give the command on all nodes, disturb the training where its fault comes now, and wait for its end."""
        scene = self._scene
        with ExitStack() as running:
            scene.commands = [running.enter_context(self._start(options)) for options in self._nodes]
            running.callback(scene.kill_unseen)
            self._seen = self._seen and all(command.is_seen for command in scene.commands)
            killed = None
            if is_first and self._fault is not None:
                self._came = self._disturb(self._fault)
            if len(scene.commands) > 1 and not scene.commands[-1].runs():  # a batch system gives it there again
                killed = scene.commands[-1]
                scene.commands[-1] = running.enter_context(self._start(self._nodes[-1]))
            end = scene.commands[0].wait(self._limit)
            self._others += [other.wait(self._limit) for other in scene.commands[1:]]
            self._killed += [killed.wait(self._limit)] if killed else []
        self._came = self._came and scene.planted.is_met()
        return end

    def _disturb(self, fault: Fault) -> bool:
        """Wait for the fault's moment, and do what is done from outside; say whether the fault has come."""
        scene, planted = self._scene, self._scene.planted
        deadline = time.monotonic() + self._limit
        while (said := planted.fired()) is None:
            if not scene.commands[0].runs() or time.monotonic() > deadline:
                return False
            time.sleep(PERIOD)
        scene.said, self._before = said, tuple(scene.states())
        try:
            if fault.disturb is not None:
                fault.disturb(scene)
        except (LookupError, OSError):  # a process that should be there is not
            return False
        finally:
            planted.open_gate()
        return True

    def _start(self, nodes: tuple[str, ...]) -> BoundedCommand:
        self._given += 1
        output = self._folder / f"output-{self._given}"
        settings = self._fault.settings if self._fault else ()
        scene = self._scene
        return self._training.start(scene.run_dir, scene.planted, output, settings=settings, nodes=nodes)

    def _options_of_nodes(self, nodes: int) -> list[tuple[str, ...]]:
        """Return the options of each node's command; of a single node none."""
        if nodes == 1:
            return [()]
        common = ("--nnodes", str(nodes), "--rdzv", f"{LOCALHOST}:{free_port()}")
        each = ("--nproc", str(self._training.nproc // nodes))
        return [(*common, "--node-rank", str(node), *each) for node in range(nodes)]
