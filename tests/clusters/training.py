"""A tiny training on the nodes, whose end a test decides."""

import json
import os
import signal
import sys
from pathlib import Path

import yaml

from clusters.virtual_nodes import wait_until
from pretrain.checkpoint.folder import CheckpointFolder

ROOT = Path(__file__).parents[2]
PRETRAIN = Path(sys.executable).parent / "pretrain"
ENDLESS = 1_000_000
STEP = "| loss "  # in the line of each iteration


class Training:
    """A recipe and a run directory in a folder of the test.

    Where nothing is set it goes on until the test ends it: so it is in its midst however slow the machine is.
    """

    def __init__(self, nodes, tokens, folder):
        self.nodes, self.folder = nodes, folder
        self.run_dir, self._switch = folder / "run", folder / "enough"
        recipe = {
            "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32},
            "tokenizer": {"type": "bytes"},
            "data": {"path": str(tokens), "split": "90,10,0", "num_workers": 0, "cache_path": str(folder / "cache")},
            "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": ENDLESS},
            "optimizer": {"lr": 1e-3},
            "schedule": {"lr_decay_style": "constant"},
            "checkpoint": {"save_interval": ENDLESS, "keep": 2},
            "logging": {"log_interval": 1},
        }
        recipe["train"]["kill_switch_path"] = str(self._switch)
        self.recipe = folder / "tiny.yml"
        self.recipe.write_text(yaml.safe_dump(recipe))

    def words(self, *options):
        """Return the command line of the run."""
        return [PRETRAIN, "--backend", "cpu", self.recipe, "--run-dir", self.run_dir, *options]

    def start(self, node, *command, log="printed.txt"):
        """Start a command on a node, in the test's folder."""
        return node.start(*command, log=self.folder / log, cwd=self.folder)

    def reach(self, iteration):
        """Wait until the run has logged this iteration."""
        wait_until(lambda: self.iteration() >= iteration, self.printed)

    def iteration(self):
        """Return the last iteration logged."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        steps = [record["iteration"] for line in lines if (record := _whole(line)).get("kind") == "train"]
        return steps[-1] if steps else 0

    def saved(self):
        """Return the iteration of the latest checkpoint; None before the first."""
        return CheckpointFolder(self.run_dir / "checkpoints").latest()

    def end(self):
        """Have the recipe's own switch end the run at the next iteration: exit code 0."""
        self._switch.touch()

    def printed(self):
        """Return what the commands of the test have printed."""
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.txt")))

    def ranks(self, node):
        """Return the pids of a node's ranks, in the order of their start."""
        return node.pids("pretrain", str(self.run_dir))

    def processes(self):
        """Return the processes of the run by their node."""
        found = {node.name: node.pids(str(self.folder)) for node in self.nodes}
        return {name: pids for name, pids in found.items() if pids}

    def kill(self):
        """Kill all processes of the run."""
        for pids in self.processes().values():
            for pid in pids:
                os.kill(pid, signal.SIGKILL)


def _whole(line):
    try:
        return json.loads(line)
    except ValueError:  # being written
        return {}
