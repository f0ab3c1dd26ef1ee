"""Trainings of which it is known whether they fit: GPT-3 on 64 GPUs of 80 GB, and GPT-NeoX on eight of 40 GB.

The scripts that the recipes follow say it: GPT-3 175B was trained in this layout; the tutorial of GPT-NeoX-20B runs out
of memory with its 44 layers, and says to try 22.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
A100_40, A100_80 = "NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"


@pytest.mark.full
@pytest.mark.parametrize(
    ("recipe", "device", "devices", "overrides", "fits"),
    [
        ("gpt3", A100_80, 64, [], True),
        ("neox20b", A100_40, 8, [], False),
        ("neox20b", A100_40, 8, ["model.num_layers=22", "parallel.pipeline_layers=[5, 6, 6, 5]"], True),
    ],
    ids=["175B on 64 x 80 GB", "44 layers on 8 x 40 GB", "22 layers on 8 x 40 GB"],
)
def test_known_trainings(recipe, device, devices, overrides, fits):
    arguments = [part for override in overrides for part in ("--set", override)]
    command = [sys.executable, "-m", "pretrain.cli.main", "plan", str(ROOT / "recipes" / f"{recipe}.yml"), "--json"]
    command += ["--device", device, "--devices", str(devices), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert json.loads(ended.stdout)["fits"] is fits
