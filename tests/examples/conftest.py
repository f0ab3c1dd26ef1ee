"""A tiny training, by which the examples are started for real, and what its losses must be."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from e2e.conftest import ROOT, pretrain, text_tokens  # noqa: F401  text_tokens is a fixture
from pretrain.exit_codes import ExitCode

ITERATIONS = 100
LIMIT = 600  # seconds, for what takes ten on a quiet machine
EXAMPLES = ROOT / "examples"


def documents(path):
    """Return the YAML documents of an example."""
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


@pytest.fixture
def training(tmp_path, text_tokens):  # noqa: F811
    made = Training(tmp_path, text_tokens)
    yield made
    made.kill()


class Training:
    """A recipe in a folder, its run directory, and the processes that train it, one a node."""

    def __init__(self, folder, tokens):
        self.folder, self.run_dir = folder, folder / "runs" / "first"
        self.recipe = folder / "recipe.yml"
        self._processes = []
        recipe = {
            "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "seq_length": 32},
            "tokenizer": {"type": "bytes"},
            "data": {"path": str(tokens), "split": "90,10,0", "num_workers": 0, "cache_path": str(folder / "cache")},
            "train": {"micro_batch_size": 1, "global_batch_size": 4, "train_iters": ITERATIONS},
            "optimizer": {"lr": 1e-3},
            "schedule": {"lr_decay_style": "constant"},
            "checkpoint": {"save_interval": 20},
            "logging": {"log_interval": 1},
        }
        self.recipe.write_text(yaml.safe_dump(recipe))

    def endless(self):
        """Let only a signal end it."""
        text = self.recipe.read_text()
        self.recipe.write_text(text.replace(f"train_iters: {ITERATIONS}", "train_iters: 1000000"))

    def environment(self, **variables):
        """Return variables with which a shell finds this `pretrain`."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **variables}

    def start(self, words, environment):
        """Start a command."""
        with (self.folder / f"printed-{len(self._processes)}.txt").open("w") as log:
            started = subprocess.Popen(words, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._processes.append(started)
        return started

    def reach(self, iteration):
        """Wait until this iteration is logged."""
        self._wait(lambda: len(self.losses()) >= iteration)

    def says(self, text):
        """Wait until a command has printed this."""
        self._wait(lambda: re.search(text, self.printed()))

    def _wait(self, is_so):
        end = time.monotonic() + LIMIT
        while not is_so():
            assert time.monotonic() < end, self.printed()
            assert any(process.poll() is None for process in self._processes), self.printed()
            time.sleep(0.05)

    def stop(self, process):
        """Ask for the end in the midst of the training, as a scheduler does."""
        self.reach(3)
        process.send_signal(signal.SIGTERM)

    def losses(self, run_dir=None):
        """Return the loss of each iteration that is logged."""
        path = (run_dir or self.run_dir) / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("\n")]
        return [record["lm_loss"] for record in records if record["kind"] == "train"]

    def is_whole(self):
        """Compare the losses with those of a training in one piece, on as many ranks."""
        alone = self.folder / "alone"
        pretrain(self.recipe, "--backend", "cpu", "--nproc", "2", "--run-dir", alone)
        assert len(self.losses()) == ITERATIONS
        return self.losses() == self.losses(alone)

    def stands_still(self):
        """Wait until no rank of the run is left."""
        end = time.monotonic() + LIMIT
        while left := processes_of(self.run_dir):
            assert time.monotonic() < end, left
            time.sleep(0.5)

    def printed(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("printed-*.txt")))

    def kill(self):
        for process in self._processes:
            process.kill()
            process.wait()


def processes_of(folder):
    """Return the processes that name a folder in their arguments."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(folder) in line]


def codes(processes):
    """Return the exit codes of processes, when they have ended."""
    return [process.wait(LIMIT) for process in processes]


SAVED = [ExitCode.SAVED] * 2
