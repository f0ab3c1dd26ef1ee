"""A third-party backend: docs/example-backend, installed by pip beside pretrain, trains with an unchanged core."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from plugins.fake_site import FakeSite
from structure.sources import ROOT

RECIPE = """
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 4, seq_length: 32}
tokenizer: {type: bytes}
data: {path: text_text_document, split: "98,1,1", num_workers: 0}
train: {micro_batch_size: 2, global_batch_size: 2, train_iters: 2}
optimizer: {lr: 1.0e-3}
evaluation: {interval: 0}
checkpoint: {save: false}
logging: {log_interval: 1, tensorboard: false}
"""

BROKEN = """
from pretrain.plugins import hookimpl
from pretrain.plugins.offer import Offer

def norm(x, weight, bias=None):
    raise RuntimeError("no beads left")

@hookimpl
def pretrain_norm():
    return Offer(name="beads", build=lambda built: norm)
"""

pytestmark = [
    *(pytest.mark.slow, pytest.mark.usefixtures("forked_python")),
    pytest.mark.xdist_group("stranger"),  # one installation
]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder into which pip has installed the example, offline."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(ROOT / "docs" / "example-backend")], check=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a recipe and its token file."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "recipe.yml").write_text(RECIPE)
    (folder / "text.jsonl").write_text(
        "\n".join(json.dumps({"text": f"line {number} of a text"}) for number in range(99))
    )
    pretrain(folder, "data", "build", "text.jsonl", "--output-prefix", "text", "--tokenizer-type", "bytes")
    return folder


def pretrain(folder, *arguments, site="", code=0):
    """Run the command in a folder and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(site)},
    )
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.mark.full
def test_it_is_listed(site, folder):
    lines = pretrain(folder, "backends", site=site).splitlines()
    assert any(line.split()[:3] == ["example", "pretrain-example", "0.1.0"] and "available" in line for line in lines)


def test_it_trains_with_its_kernel_and_the_reference_for_the_rest(site, folder):
    shown = pretrain(folder, "--backend", "example", "recipe.yml", "--run-dir", "run", site=site)
    rows = [line.split()[:4] for line in shown.splitlines()]
    assert ["norm", "torch", "-", "pretrain-example"] in rows
    assert ["attention", "reference", "softmax", "pretrain"] in rows
    records = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 2]
    # Untrained, every byte is about as likely as any other: ln 256 is 5.55.
    assert all(5.0 < record["lm_loss"] < 6.0 for record in records)


@pytest.mark.full
def test_a_kernel_that_raises_is_named_below_the_traceback(folder, tmp_path):
    (tmp_path / "broken_kernels.py").write_text(BROKEN)
    site = FakeSite(tmp_path)
    site.install("kernels-broken", "2.0", "pretrain.plugins", broken="broken_kernels")
    shown = pretrain(folder, "--backend", "cpu", "recipe.yml", "--run-dir", "broken", site=tmp_path, code=1)
    assert "RuntimeError: no beads left" in shown
    assert shown.splitlines()[-1].endswith("Raised in the kernel 'beads' for norm (kernels-broken 2.0).")
