"""A launcher of ranks on hosts as a process of its own, without DeepSpeed: `hosted_launcher.py JOB WORLD_SIZE`."""

import json
import os
import sys
from pathlib import Path

from pretrain.launch.board import Board, Task
from pretrain.launch.hosted_ranks import HostedRanks
from pretrain.launch.job import Job
from pretrain.launch.nodes.launchers import PDSH, RANK
from pretrain.launch.processes.supervision import supervise

job, world_size = Job.from_json(sys.argv[1]), sys.argv[2]
variables = json.loads(os.environ.get("HOSTED_VARIABLES", "{}"))
board = Board.pin(Path(job.run_dir), Task(job=job, launcher=PDSH, variables=variables))
runner = [sys.executable, Path(__file__).with_name("fake_runner.py"), world_size, RANK, board.folder]
try:
    with HostedRanks([str(word) for word in runner], board, int(world_size)) as ranks:
        failure = supervise(ranks)
finally:
    board.remove()
if failure:
    print(failure, file=sys.stderr)
    sys.exit(failure.exit_code)
