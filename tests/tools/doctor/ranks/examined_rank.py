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
from pretrain.tools.doctor.files import checkpoint_folder
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.between import examine_between
from pretrain.tools.doctor.ranks.board import Board
from pretrain.tools.doctor.ranks.steps import file_steps, link_times, rank_speed


def main() -> None:
    """Examine as one rank."""
    case, rank = json.loads(sys.argv[1]), int(sys.argv[2])
    _hurry()
    board = Board(World(rank=rank, **case["worlds"][rank]), case["timeout"])
    if fault := case["faults"].get(str(rank)):
        globals()[f"_{fault[0]}"](board, *fault[1:])
    recipe = make_recipe(case["recipe"], case["overrides"][rank]) if case["recipe"] else None
    own = [
        Finding(check="kernel norm", verdict=Verdict.OK, text="like the reference"),
        Finding(check="memory", verdict=Verdict.LOOK, text=f"{rank} GiB free", remedy="free some"),
    ]
    board.doing("kernel norm")
    plugins = SimpleNamespace(backend=CpuBackend())
    device = None if fault == ["lacks_its_device"] else torch.device("cpu")
    outcome = examine_between(
        recipe,
        plugins,
        board.world,
        device,
        own,
        start=None if recipe is None else Start(recipe=recipe, run_dir=None, resume="no"),
        board=board,
        timeout=case["timeout"],
        sizes=(4096, 65536),
    )
    if outcome.reports:
        found = json.dumps([asdict(finding) for finding in outcome.findings])
        Path(case["folder"], f"{rank}.json").write_text(found)
    outcome.leave(int(any(finding.verdict is Verdict.WRONG for finding in outcome.findings)))


def _hurry() -> None:
    """Measure for a shorter time, and smaller files."""
    rank_speed._TIME = 0.02
    link_times._SHARE_OF_TIME = 0.02
    checkpoint_folder.FolderProbe.write.__defaults__ = (1 << 20,)
    file_steps._PATIENCE = 0.3


def _stops(board: Board, words: str) -> None:
    _at(board, words, signal.SIGSTOP)


def _dies(board: Board, words: str) -> None:
    _at(board, words, signal.SIGKILL)


def _loses_the_board_for_a_moment(board: Board, words: str) -> None:
    """One answer of each store comes late."""
    doing = board.doing

    def say(text: str) -> None:
        doing(text)
        for line in board._lines if words in text else ():
            line.lost = "no answer within 5 s"

    board.doing = say


def _at(board: Board, words: str, number: int) -> None:
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


def _lacks_its_device(board: Board) -> None:
    """`main` leaves it out."""


def _is_slow(board: Board) -> None:
    rank_speed.synchronize = lambda device: time.sleep(0.01)


if __name__ == "__main__":
    main()
