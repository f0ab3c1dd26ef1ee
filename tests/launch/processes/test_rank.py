"""One rank process by itself."""

import os
import subprocess
import sys

from pretrain.launch.processes.failure import USER_ERROR
from pretrain.launch.processes.rank import FAILURE_FILE, PARENT
from pretrain.launch.world import LOCALHOST, free_port, node_worlds


def test_a_rank_that_cannot_write_its_failure_file_prints_the_failure(job, tmp_path):
    (tmp_path / "0.json").mkdir()  # prevents writing the file, as a full disk would
    world = node_worlds([1], 0, LOCALHOST, free_port())[0]
    own = {PARENT: str(os.getpid()), FAILURE_FILE: str(tmp_path / "0.json")}
    rank = subprocess.run(
        [sys.executable, "-P", "-m", "pretrain.launch.processes.rank", job("all_miss_data").to_json()],
        env=os.environ | world.environment() | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (rank.returncode, rank.stderr) == (USER_ERROR, "corpus.bin is truncated.\nBuild it again.\n")
