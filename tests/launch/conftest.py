import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from pretrain.launch.job import Job
from pretrain.launch.world import free_port
from pretrain.recipe import load_recipe
from pretrain.tools.corpus.build import build_tokens

HERE = Path(__file__).parent
RECIPE = """
model: {num_layers: 2, hidden_size: 16, num_attention_heads: 2, seq_length: 8}
tokenizer: {type: bytes}
data: {path: corpus, split: "80,10,10"}
train: {micro_batch_size: 1, global_batch_size: 4, train_iters: 10}
optimizer: {lr: 0.001}
"""

FAKE = """
import sys
sys.path.insert(0, {folder!r})
from fake_pdsh import main
main()
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Lets rank processes import fake_training; no other program started this process as a rank."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("SLURM_") and name not in {"RANK", "WORLD_SIZE", "OMP_NUM_THREADS", "PRETRAIN_TRACEBACK"}
    }
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setattr("pretrain.launch.nodes.store_client._PATIENCE", 60.0)  # a busy machine's store takes its time
    with patch.dict(os.environ, kept | {"PYTHONPATH": str(HERE)}, clear=True):
        yield


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "tiny.yml"
    path.write_text(RECIPE)
    text = tmp_path / "text.jsonl"
    text.write_text('{"text": "some words"}\n' * 20)
    build_tokens([text], tmp_path / "corpus", load_recipe(path).tokenizer)
    return path


@pytest.fixture
def job(recipe_file, tmp_path):
    """Makes the job of a fake training; its run directory exists."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    job = Job(recipe=str(recipe_file), backend="cpu", run_dir=str(run_dir), prepared=True)
    return lambda train, **changes: dataclasses.replace(job, train=f"fake_training:{train}", **changes)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A fake of pdsh on the PATH; returns what it was called with. The rendezvous is on a free port."""
    folder, calls = tmp_path / "bin", tmp_path / "calls"
    folder.mkdir()
    calls.mkdir()
    for name in ("pdsh", "ssh"):
        (folder / name).write_text(f"#!{sys.executable}\n{FAKE.format(folder=str(HERE))}")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_CALLS", str(calls))
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.chdir(tmp_path)
    return lambda: json.loads((calls / "pdsh.json").read_text())


@pytest.fixture(params=["ranks"])
def launcher(job, request, programs):
    """Starts `nproc` ranks of a fake training from a process of its own, as a shell would; killed at the end."""
    started = []

    def launch(train, nproc=2):  # for hosts: the ranks of each, a digit each
        process = subprocess.Popen(
            [sys.executable, HERE / "launcher.py", request.param, job(train).to_json(), str(nproc)],
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
