"""One rank process by itself."""

import os
import subprocess
import sys

from pretrain.launch.processes.failure import USER_ERROR
from pretrain.launch.processes.rank import FAILURE_FILE, PARENT, claim_report
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


def test_of_the_ranks_of_a_launcher_one_may_print_the_report_of_all(monkeypatch, tmp_path):
    claims = []
    for rank in range(3):
        monkeypatch.setenv(FAILURE_FILE, str(tmp_path / f"{rank}.json"))
        claims.append(claim_report())
    monkeypatch.delenv(FAILURE_FILE)
    assert [*claims, claim_report()] == [True, False, False, True]
