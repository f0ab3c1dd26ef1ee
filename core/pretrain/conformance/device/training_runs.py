"""Training runs as a user starts them, by the command line: a tiny GPT on the bytes of a made-up text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from pretrain.conformance.subject import Subject

SECONDS = 900
ITERATIONS = 6
RECIPE = {
    "model": {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 32,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "tokenizer": {"type": "bytes"},
    "data": {"path": "text_text_document", "split": "98,1,1", "num_workers": 0},
    "train": {"micro_batch_size": 2, "global_batch_size": 4, "train_iters": ITERATIONS},
    "optimizer": {"lr": 1e-2},
    "evaluation": {"interval": 0},
    "logging": {"log_interval": 1, "tensorboard": False},
}
"""Without dropout: devices generate different random numbers."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True)
class Curve:
    """Results of a training.

    Attributes:
        losses: iteration -> loss.
        norms: iteration -> gradient norm; None where an overflow skipped the step.
    """

    losses: dict[int, float]
    norms: dict[int, float | None]


class TrainingRuns:
    """The trainings of one backend, each run once, in a folder of their own."""

    def __init__(self, subject: Subject) -> None:
        """Find the dtype and make the text."""
        supports = subject.plugins.backend.supports
        self.backend = subject.name
        self.dtype = next((name for name, dtype in DTYPES.items() if supports(dtype)), "fp32")
        self._kept = tempfile.TemporaryDirectory(prefix="pretrain-conformance-")
        self._folder = Path(self._kept.name)
        self._outcomes: dict[str, Curve | str] = {}
        (self._folder / "recipe.yml").write_text(json.dumps(RECIPE))  # which is YAML too
        lines = (json.dumps({"text": f"line {number} counts to {number * number}"}) for number in range(200))
        (self._folder / "text.jsonl").write_text("\n".join(lines))
        self._fault = self._start("data", "build", "text.jsonl", "--output-prefix", "text", "--tokenizer-type", "bytes")

    @staticmethod
    @lru_cache
    def of(subject: Subject) -> TrainingRuns:
        """Return those of a backend; the same ones for every test of this process."""
        return TrainingRuns(subject)

    def run(
        self, name: str, backend: str, *settings: str, ranks: int = 1, last: int = ITERATIONS, load: str = ""
    ) -> Curve:
        """Train until iteration `last`, from the start or from where the training called `load` ended.

        A failed training fails every test that needs it, with the end of its output.
        """
        if name not in self._outcomes:
            loaded = [f"checkpoint.load={load}/checkpoints"] if load else []
            overrides = [f"precision.dtype={self.dtype}", f"train.exit_interval={last}", *loaded, *settings]
            options = [part for setting in overrides for part in ("--set", setting)]
            self._outcomes[name] = (
                self._fault
                or self._start("--backend", backend, "recipe.yml", "--run-dir", name, "--nproc", str(ranks), *options)
                or self._curve(name)
            )
        outcome = self._outcomes[name]
        if isinstance(outcome, str):
            pytest.fail(outcome, pytrace=False)
        return outcome

    def _curve(self, name: str) -> Curve:
        lines = [json.loads(line) for line in (self._folder / name / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["kind"] == "train"]
        return Curve(
            losses={step["iteration"]: step["lm_loss"] for step in steps},
            norms={step["iteration"]: step["grad_norm"] for step in steps},
        )

    def _start(self, *arguments: str) -> str:
        """Run the command; return the end of its output if it failed, else ""."""
        done = subprocess.run(
            [sys.executable, "-m", "pretrain.cli.main", *arguments],
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        end = "\n".join(done.stdout.splitlines()[-30:])
        return f"`pretrain {' '.join(arguments)}` ended with code {done.returncode}:\n{end}" if done.returncode else ""
