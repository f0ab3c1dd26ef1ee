"""One training whose processes are killed at random, from its first command to its end."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.planted import Kind, Planted
from chaos.scene import Scene, checkpoint_folder

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from chaos.bounded_command import BoundedCommand
    from chaos.tiny_training import TinyTraining

ITERATIONS, SAVED, EVALUATED = 200, 10, 15
SETTINGS = (
    f"train.train_iters={ITERATIONS}",
    f"checkpoint.save_interval={SAVED}",
    f"evaluation={{interval: {EVALUATED}, iters: 3}}",
)
PHASES = ("starting", "training", "saving", "evaluating")
TARGETS = ("rank 0", "rank 1", "launcher", "all")
LIMIT = 600.0
"""Seconds that a command may take, whatever is done to it."""
_LOOK = 0.001
_STEP = re.compile(r"^iteration\s+(\d+)/\d+ ", re.MULTILINE)
_RESTART = re.compile(r"^restart \d+ of \d+", re.MULTILINE)
_FAILED = re.compile(r"^rank \d+ failed:\n.*?(?=^restart |^rank \d+ failed:|^iteration |\Z)", re.MULTILINE | re.DOTALL)
_BY_KILL = re.compile(
    r"killed by SIGKILL|connection (was )?(closed|reset|refused)|broken pipe|gloo/transport", re.IGNORECASE
)
_CODES = {0, 1, -9, 137}
"""Ends of a command that kills explain: none; too many failures without progress; that of the launcher."""
_RESULTS = ("kind", "iteration", "lm_loss", "grad_norm", "ppl", "split", "consumed_samples", "learning_rate")


@dataclass(frozen=True)
class Kill:
    phase: str
    target: str


@dataclass
class Result:
    folder: Path
    steps: list[tuple[object, ...]]
    evaluations: list[tuple[object, ...]]
    states: dict[int, str]
    seconds: float
    starting: float
    kills: list[Kill] = field(default_factory=list)
    restarts: int = 0
    given_again: int = 0
    repeated: int = 0
    left: list[str] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    save_interval: int = SAVED

    def line(self) -> str:
        return (
            f"{len(self.kills)} kills, {self.restarts} restarts, given again {self.given_again} times, "
            f"{self.repeated} steps repeated, {self.seconds:.0f} s"
        )

    def problems(self, undisturbed: Result) -> list[str]:
        """Return all that must not be."""
        found = [*self.left, *self._unexplained()]
        if not self.steps or self.steps[-1][1] != ITERATIONS:
            found.append(f"it did not reach its end: {self.steps[-1:]}")
        if self.steps != undisturbed.steps:
            pairs = zip(self.steps, undisturbed.steps, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), "the number of lines")
            found.append(f"the logged numbers differ: {first}")
        if self.evaluations != undisturbed.evaluations:
            found.append(f"evaluations differ: {self.evaluations}, undisturbed {undisturbed.evaluations}")
        wanted = dict.fromkeys(range(SAVED, ITERATIONS + 1, SAVED), "")
        if self.states != wanted:
            found.append(f"checkpoints are lost or damaged: {self.states}")
        return found

    def _unexplained(self) -> list[str]:
        """Return what the kills do not explain: each ends one start of the ranks, and costs one interval of steps."""
        found = []
        ended = self.restarts + self.given_again
        if ended > len(self.kills):
            found.append(f"{ended} starts followed on {len(self.kills)} kills")
        if self.repeated > SAVED * ended:
            found.append(f"{self.repeated} steps were repeated; {SAVED * ended} at most are not in a checkpoint")
        found += [f"a command ended with exit code {code}" for code in self.codes if code not in _CODES]
        failures = [failure for output in self.outputs for failure in _FAILED.findall(output)]
        others = [failure.strip().splitlines() for failure in failures if not _BY_KILL.search(failure)]
        return found + list(dict.fromkeys(f"not by a kill: {lines[0]} {' '.join(lines[-3:])}" for lines in others))


class KilledTraining:
    """A training in a folder of its own."""

    def __init__(self, training: TinyTraining, name: str, draw: random.Random, starting: float = 0.0) -> None:
        """`starting`: seconds from a command to its first logged iteration, of the undisturbed training."""
        self._training, self._draw, self._starting = training, draw, starting
        self._folder = training.folder / name
        signs = self._folder / "signs"
        signs.mkdir(parents=True)
        self._run_dir = self._folder / "run"
        planted = Planted(kind=Kind.NONE, rank=None, signs=signs, after=self._run_dir)
        self._scene = Scene(run_dir=self._run_dir, planted=planted, ranks=training.nproc)
        self._kills: list[Kill] = []
        self._outputs: list[str] = []
        self._codes: list[int | None] = []
        self._left: list[str] = []
        self._first_step = 0.0

    def run(self, kills: int) -> Result:
        """Train to the end, with so many kills on the way; fewer if the training is over before."""
        begun = time.monotonic()
        while True:
            before = set(self._scene.states())
            code = self._command(kills)
            if lost := before - set(self._scene.states()):
                self._left.append(f"checkpoints are lost: {sorted(lost)}")
            if code in {0, None} or self._left or len(self._outputs) > len(self._kills):  # not ended by a kill
                break
        self._note_files()
        return Result(
            folder=self._folder,
            steps=self._logged("train"),
            evaluations=self._logged("eval"),
            states=self._scene.states(),
            seconds=time.monotonic() - begun,
            starting=self._first_step,
            kills=self._kills,
            restarts=sum(len(_RESTART.findall(output)) for output in self._outputs),
            given_again=len(self._outputs) - 1,
            repeated=self._repeated(),
            left=self._left,
            codes=self._codes,
            outputs=self._outputs,
        )

    def _command(self, kills: int) -> int | None:
        """Give the command once, and kill; return its exit code."""
        output = self._folder / f"output-{len(self._outputs) + 1}"
        with self._training.start(self._run_dir, self._scene.planted, output, settings=SETTINGS) as command:
            self._wait_for_first_step(command, kills)
            killed = 0  # by this command's kills
            while len(self._kills) < kills and command.runs():
                phase = self._draw.choice(PHASES)
                if not self._reached(phase, command):
                    break
                killed += self._kill(command, "restarting" if phase == "starting" and killed else phase)
            end = command.wait(LIMIT)
        self._outputs.append(end.output)
        self._codes.append(end.exit_code)
        if end.exit_code is None:
            self._left.append(f"it did not end within {LIMIT} s")
        self._left += [f"process {process} is left" for process in end.left]
        return end.exit_code

    def _wait_for_first_step(self, command: BoundedCommand, kills: int) -> None:
        if kills == 0:
            begun = time.monotonic()
            self._until(lambda: self._iteration() > 0, command)
            self._first_step = time.monotonic() - begun

    def _reached(self, phase: str, command: BoundedCommand) -> bool:
        """Wait for a random moment of a phase; False if the command has ended before."""
        draw, iteration = self._draw, self._iteration()
        if phase == "starting":
            moment = time.monotonic() + draw.uniform(0.0, self._starting)
            return self._until(lambda: time.monotonic() > moment, command)
        if phase == "training":
            wanted = iteration + draw.randint(1, 2 * SAVED)
            return self._until(lambda: self._iteration() >= wanted, command)
        if phase == "saving":
            before = self._unfinished()  # a killed save leaves one until the next
            seen = self._until(lambda: bool(self._unfinished() - before), command)
            time.sleep(draw.uniform(0.0, 0.05))
            return seen
        due = (iteration // EVALUATED + 1) * EVALUATED
        seen = self._until(lambda: self._iteration() >= due, command)
        time.sleep(draw.uniform(0.0, 0.05))  # a checkpoint may come first
        return seen

    def _unfinished(self) -> set[tuple[str, int]]:
        """Return the checkpoints that are being written, or were; the probe of a start is none."""
        found = set()
        for entry in checkpoint_folder(self._run_dir).path.glob(".unfinished-[0-9]*"):
            with suppress(FileNotFoundError):  # it is complete at this moment
                found.add((entry.name, entry.stat().st_ino))
        return found

    def _kill(self, command: BoundedCommand, phase: str) -> bool:
        """Kill a random target; say whether it was there."""
        target, ranks, launcher = self._draw.choice(TARGETS), _ranks(command), command.process.pid
        if target == "launcher":
            processes = [launcher]
        elif target == "all":
            processes = [launcher, *ranks.values()]
        else:
            processes = [ranks[int(target[-1])]] if int(target[-1]) in ranks else []
        if not processes or not command.runs():
            return False
        killed: list[int] = []
        for process in processes:
            with suppress(ProcessLookupError):  # the launcher has ended it at this moment
                os.kill(process, signal.SIGKILL)
                killed.append(process)
        if not killed:
            return False
        self._kills.append(Kill(phase, "launcher" if killed == [launcher] else target))
        if launcher in processes:
            command.process.wait()
        return True

    def _until(self, condition: Callable[[], bool], command: BoundedCommand) -> bool:
        deadline = time.monotonic() + LIMIT
        while not condition():
            if not command.runs() or time.monotonic() > deadline:
                return False
            time.sleep(_LOOK)
        return command.runs()

    def _iteration(self) -> int:
        """Return the last iteration that is logged."""
        try:
            with (self._run_dir / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
                found = re.findall(rb'"iteration": (\d+),[^\n]*\n', file.read())
        except OSError:
            return 0
        return int(found[-1]) if found else 0

    def _logged(self, kind: str) -> list[tuple[object, ...]]:
        """Return the numbers of each line of a kind that do not depend on time."""
        with suppress(OSError):
            records = map(json.loads, (self._run_dir / "metrics.jsonl").read_text().splitlines())
            return [tuple(record.get(name) for name in _RESULTS) for record in records if record["kind"] == kind]
        return []

    def _repeated(self) -> int:
        steps = [step for output in self._outputs for step in _STEP.findall(output)]
        return len(steps) - len(set(steps))

    def _note_files(self) -> None:
        """Note temporary files and unfinished checkpoints that are left."""
        entries = [*self._training.temporary.iterdir(), *checkpoint_folder(self._run_dir).path.glob(".unfinished*")]
        kept = "torchinductor_"  # torch's cache of a user
        self._left += [f"{entry} is left" for entry in entries if not entry.name.startswith(kept)]


def _ranks(command: BoundedCommand) -> dict[int, int]:
    """Return the process of each rank: of those that have its variables the first, the others are its workers."""
    found: dict[int, int] = {}
    for process in sorted(command.members()):
        with suppress(OSError):
            for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if variable.startswith(b"RANK="):
                    found.setdefault(int(variable[5:]), process)
    return found
