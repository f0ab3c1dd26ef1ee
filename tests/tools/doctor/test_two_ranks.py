"""`pretrain doctor` on two ranks of this machine: a kernel that is wrong on one of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml

from pretrain.tools.doctor.command import EXAMPLE

pytestmark = [pytest.mark.full, pytest.mark.ranks]

WRONG_ON_RANK_1 = """
import os

@hookimpl
def pretrain_norm(request):
    return Offer(name="uneven", build=lambda built: norm)

def norm(x, weight, bias):
    factor = 1 + float(os.environ["RANK"])
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias * factor)
"""


def test_a_kernel_that_is_wrong_on_one_rank_is_named_with_the_rank(site, tmp_path):
    site.plugin("uneven", WRONG_ON_RANK_1)
    data = yaml.safe_load(EXAMPLE.read_text())
    data["model"] |= {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
    data["precision"] = {"dtype": "fp32"}
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(yaml.safe_dump(data))
    done = subprocess.run(
        [sys.executable, "-m", "pretrain.cli.main", "doctor", str(recipe), "--nproc", "2", "--json"],
        env=os.environ | {"PYTHONPATH": str(site.folder)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    told = json.loads(done.stdout)
    wrong = [finding for finding in told["findings"] if finding["verdict"] == "wrong"]
    (norm,) = [finding for finding in wrong if finding["check"] == "kernel norm"]
    assert norm["ranks"] == [1]
    assert norm["text"].startswith("output off by ")
    assert "data" in {finding["check"] for finding in wrong}  # the example's files are not there
