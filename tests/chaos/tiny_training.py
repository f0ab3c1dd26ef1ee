"""The training that faults are tried on, as commands of `pretrain run`."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.bounded_command import BoundedCommand
from pretrain.plugins import PLUGINS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.planted import Planted

_OWN = Path(__file__).resolve().parent
RECIPE = _OWN / "tiny.yml"
ITERATIONS, SAVE_INTERVAL = 30, 5
"""Of the recipe."""

SAVED = range(SAVE_INTERVAL, ITERATIONS + 1, SAVE_INTERVAL)
"""Iterations whose checkpoints a complete training has."""

BEFORE = 2 * SAVE_INTERVAL
"""Iteration of the checkpoint that faults wait for."""

RESTARTS = 3
"""Restarts that a training with one fault may need, and some more."""

PLUGIN = "chaos.planted_plugin"


def batch_for(ranks: int) -> str:
    """Return the value of `--set` that gives each of so many ranks one sample of a batch."""
    return f"train.global_batch_size={ranks}"


@dataclass(frozen=True, kw_only=True, slots=True)
class TinyTraining:
    """The tiny training on this machine.

    Attributes:
        folder: working directory of its commands; what they share is below it: data, a site with the plugin, temporary
            files. The run directories should be, too.
        backend: value of `--backend`.
        nproc: ranks of all nodes.
        restarts: value of `--max-restarts`.
    """

    folder: Path
    backend: str
    nproc: int
    restarts: int = RESTARTS

    def prepare(self) -> None:
        """Make the folders, and install the plugin for these commands alone."""
        self.temporary.mkdir(parents=True)
        self._site.mkdir()
        (self._site / "chaos").symlink_to(_OWN)  # without the folders beside it, which ranks shall not import
        info = self._site / "pretrain_planted-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pretrain-planted\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{PLUGINS}]\nplanted = {PLUGIN}\n")

    @property
    def temporary(self) -> Path:
        """Folder of the commands' temporary files."""
        return self.folder / "tmp"

    @property
    def _site(self) -> Path:
        return self.folder / "site"

    def start(
        self, run_dir: Path, planted: Planted, output: Path, *, settings: Sequence[str] = (), nodes: Sequence[str] = ()
    ) -> BoundedCommand:
        """Give the command that starts the training or goes on with it.

        Args:
            run_dir: value of `--run-dir`.
            planted: what the ranks do themselves.
            output: file for its output.
            settings: further values of `--set`.
            nodes: options of one of several nodes, `--nproc` with them; empty for one node.
        """
        overrides = [word for each in (batch_for(self.nproc), *settings) for word in ("--set", each)]
        words = [
            *(sys.executable, "-P", "-m", "pretrain.cli.main", "run", str(RECIPE)),
            *("--backend", self.backend, "--run-dir", str(run_dir), "--resume", "auto"),
            *("--max-restarts", str(self.restarts)),
            *(nodes or ("--nproc", str(self.nproc))),
            *overrides,
        ]
        return BoundedCommand(words, folder=self.folder, environment=self._environment(planted), output=output)

    def _environment(self, planted: Planted) -> dict[str, str]:
        paths = (str(self._site), os.environ.get("PYTHONPATH", ""))
        return {
            **os.environ,
            **planted.to_environment(),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TMPDIR": str(self.temporary),
        }
