"""The compact GPT-2 of `compiled` as nanoGPT trains it on a CPU: not compiled, PyTorch's AdamW not fused."""

from __future__ import annotations

from benchmarks.training.setting import Setting
from benchmarks.training.systems.compiled import training
from benchmarks.training.train_step import serve

serve(training(Setting.given(), is_compiled=False))
