"""One rank that is examined, perhaps with a fault: `python -m tools.doctor.ranks.examined_rank CASE RANK`.

It writes FOLDER/RANK.json, the findings, if it is the rank that reports, and ends with 1 if one is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import torch

from pretrain.cpu.backend import CpuBackend
from pretrain.launch.start_checks import Start
from pretrain.launch.world import World
from pretrain.recipe import make_recipe
from pretrain.tools.doctor import device_speed
from pretrain.tools.doctor.examination import examine_between
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks import checkpoint_folder, links, steps
from pretrain.tools.doctor.ranks.status_board import StatusBoard
from recipe.smallest import SMALLEST


def main() -> None:
    """Examine as one rank."""
    case, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    _hurry()
    board = StatusBoard(World(rank=rank, **case["worlds"][rank]), case["timeout"])
    if fault := case["faults"].get(str(rank)):
        globals()[f"_{fault[0]}"](board, *fault[1:])
    recipe = make_recipe(case["recipe"] or SMALLEST, case["overrides"][rank])
    own = [
        Finding(check="kernel norm", verdict=Verdict.OK, text="like the reference"),
        Finding(check="memory", verdict=Verdict.LOOK, text=f"{rank} GiB free", remedy="free some"),
    ]
    board.doing("kernel norm")
    plugins = SimpleNamespace(backend=CpuBackend())
    device = None if fault == ["lacks_its_device"] else torch.device("cpu")
    outcome = examine_between(
        steps.own_step(own, has_device=device is not None, world_size=board.world.world_size),
        board,
        plugins,
        device,
        recipe,
        start=Start(recipe=recipe, run_dir=None, resume="no") if case["recipe"] else None,
        backend_name="cpu",
        sizes=(4096, 65536),
    )
    if outcome.reports:
        found = json.dumps([asdict(finding) for finding in outcome.findings])
        Path(case["folder"], f"{rank}.json").write_text(found)
    outcome.leave(int(any(finding.verdict is Verdict.WRONG for finding in outcome.findings)))


def _hurry() -> None:
    """Measure for a shorter time, and smaller files."""
    steps._TIME = 0.02
    links._SHARE_OF_TIME = 0.02
    checkpoint_folder._WRITTEN = 1 << 20
    checkpoint_folder._PATIENCE = 0.3


def _stops(board: StatusBoard, words: str) -> None:
    _at(board, words, signal.SIGSTOP)


def _dies(board: StatusBoard, words: str) -> None:
    _at(board, words, signal.SIGKILL)


def _loses_the_board_for_a_moment(board: StatusBoard, words: str) -> None:
    """One answer of each store comes late."""
    doing = board.doing

    def say(text: str) -> None:
        doing(text)
        for client in board._clients if words in text else ():
            client.lost = "no answer within 5 s"

    board.doing = say


def _at(board: StatusBoard, words: str, number: int) -> None:
    """Send this process a signal when it says that it does something."""
    doing = board.doing

    def say(text: str) -> None:
        doing(text)
        if words in text:
            while not board.reached:  # the board is written in the background
                time.sleep(0.01)
            board.flush()
            time.sleep(0.2)
            os.kill(os.getpid(), number)

    board.doing = say


def _lacks_its_device(board: StatusBoard) -> None:
    """`main` leaves it out."""


def _is_slow(board: StatusBoard) -> None:
    device_speed.synchronize = lambda device: time.sleep(0.01)


if __name__ == "__main__":
    main()
