"""Jobs that evaluate or generate, on ranks that do not have them from one launcher."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from pretrain.errors import CheckpointError, LostRanksError, NotFiniteError, RecipeError
from pretrain.exit_codes import ExitCode
from pretrain.launch.job import ForwardJob
from pretrain.launch.processes.failure import Failure, exit_code_of
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

RANK = """import sys
from pretrain.launch.job import job_of
from pretrain.launch.schedulers import current_world
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


def of_disk(number):
    try:
        raise CheckpointError("checkpoints cannot be written") from OSError(number, "the disk")
    except CheckpointError as error:
        return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError("a key"), ExitCode.USER_ERROR),
        (of_disk(errno.ENOSPC), ExitCode.USER_ERROR),
        (of_disk(errno.EIO), ExitCode.FAILURE),
        (NotFiniteError("rank 1"), ExitCode.FAILURE),
        (LostRanksError("rank 1"), ExitCode.FAILURE),
        (ZeroDivisionError(), ExitCode.FAILURE),
    ],
)
def test_only_what_a_repetition_meets_again_is_a_user_error(error, code):
    assert exit_code_of(error) == code
    assert Failure.of(error, 0, with_traceback=False).exit_code == code
