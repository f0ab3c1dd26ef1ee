"""A run on NPUs that hangs names the collective of HCCL, by torch_npu's recorder. Skipped where there is no NPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forked_python import client
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.token_files.writing import IndexPart, write_index
from pretrain.launch.job import Job
from pretrain.plugins.backend import Unavailable
from pretrain_ascend.backend import AscendBackend

TESTS = Path(__file__).parents[4] / "tests"
RECIPE = {
    "model": {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "seq_length": 32,
        "activation": "gelu_tanh",
    },
    "tokenizer": {"type": "bytes"},
    "train": {"micro_batch_size": 1, "global_batch_size": 2, "train_iters": 40},
    "optimizer": {"lr": 1e-3},
    "parallel": {"tensor_model_parallel_size": 2},
    "checkpoint": {"save": False},
    "evaluation": {"interval": 0},
    "logging": {"hang_after_seconds": 6, "tensorboard": False},
}

pytestmark = [
    pytest.mark.full,
    pytest.mark.ranks,
    pytest.mark.usefixtures("forked_python"),
    pytest.mark.skipif(isinstance(AscendBackend().availability(), Unavailable), reason="needs an NPU"),
]


@pytest.mark.parametrize(
    ("direction", "operation"),
    # torch_npu's recorder names no operation, and the backward pass waits later, for what it has called before.
    [("forward", "all-reduce"), ("backward", "a collective")],
)
def test_a_rank_that_sleeps_in_a_layer(tmp_path, direction, operation):
    prefix = tmp_path / "text"
    ids = np.arange(20_000, dtype="<u2") % 256
    bin_path(prefix).write_bytes(ids.tobytes())
    with idx_path(prefix).open("wb") as stream:
        write_index(stream, ids.dtype, [IndexPart(np.full(20, 1000, "<i4"), np.arange(1, 21, dtype="<i8"))])
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(json.dumps({**RECIPE, "data": {"path": str(prefix), "split": "100,0,0", "num_workers": 0}}))
    job = Job(
        recipe=str(recipe),
        backend="ascend",
        run_dir=str(tmp_path / "run"),
        prepared=True,
        train="faulty_training:train",
    )
    path = os.pathsep.join(map(str, (TESTS / "report" / "hang", TESTS)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(TESTS / "launch" / "launcher.py"), "ranks", job.to_json(), "2"],
        env={**os.environ, "PYTHONPATH": path, "FAULT": f"{direction}:1", client.BACKEND: "ascend"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    place = f"layer 2 of 2, {direction}, iteration 4"
    expected = f"rank 0 waits in {operation} of group tp ({place}); rank 1 is not there: it is in {place}; "
    assert done.returncode == 1
    assert expected in done.stdout + done.stderr
