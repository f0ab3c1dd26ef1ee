"""The planned peak of a step against the allocator of an NPU. Skipped where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.plugins.backend import Unavailable
from pretrain_ascend.backend import AscendBackend

RECIPE = """\
model:
  {num_layers: 2, hidden_size: 128, num_attention_heads: 4, seq_length: 128, activation: gelu_tanh, hidden_dropout: 0.1}
tokenizer: {type: bytes}
data: {path: text}
train: {micro_batch_size: 4, global_batch_size: 8, train_iters: 3}
optimizer: {name: adamw, lr: 1.0e-3}
schedule: {lr_warmup_iters: 1, lr_decay_style: cosine}
"""


@pytest.mark.full
@pytest.mark.parametrize("precision", ["dtype: fp32", "dtype: fp16, initial_loss_scale: 1024"])
def test_the_planned_peak_is_that_of_the_allocator(tmp_path, precision):
    """Within 3 %; torch_npu adds 32 bytes to each tensor, and rounds to 512."""
    if isinstance(AscendBackend().availability(), Unavailable):
        pytest.skip("there is no NPU")
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(RECIPE + f"precision: {{{precision}}}\n")
    program = Path(__file__).parent / "measured_steps.py"
    measured = int(run(str(program), str(recipe)).split()[-1])
    arguments = ["plan", str(recipe), "--device", "Ascend910B3", "--json"]
    (stage,) = json.loads(run("-m", "pretrain.cli.main", *arguments))["stages"]
    assert stage["allocated_bytes"] == pytest.approx(measured, rel=0.03)


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout
