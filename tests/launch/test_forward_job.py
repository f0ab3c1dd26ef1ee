"""Jobs that evaluate or generate, on ranks that do not have them from one launcher."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pretrain.launch.forward_job import ForwardJob
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

RANK = """import sys
from pretrain.launch.jobs import job_of
from pretrain.launch.schedulers.detection import current_world
job_of(sys.argv[1]).run(current_world())
"""


@pytest.mark.usefixtures("forked_python")
def test_nodes_with_different_recipes_do_not_evaluate_and_rank_0_says_why(recipe_file, tmp_path):
    given = {"recipe": str(recipe_file), "backend": "cpu", "function": "fake_training:sum_of_ranks"}
    jobs = [
        ForwardJob(**given, overrides=overrides, options={"run_dir": str(tmp_path)}, reads_data=True).to_json()
        for overrides in ((), ("model.num_layers=4",))
    ]
    port = free_port()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, job],
            env=os.environ | node_worlds([1, 1], node, LOCALHOST, port)[0].environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node, job in enumerate(jobs)
    ]
    errors = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert "  model.num_layers: 4 on " in errors[0]
    assert (errors[1], ranks[1].returncode) == ("", 2)
    assert list(tmp_path.glob("*.sum")) == []
