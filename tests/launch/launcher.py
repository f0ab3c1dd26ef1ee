"""A launcher as a process of its own: `launcher.py JOB NPROC`. Exits as `pretrain run` does."""

import sys

from command_end import leave

from pretrain.launch.job import Job
from pretrain.launch.start import run_ranks
from pretrain.launch.world import LOCALHOST, free_port, node_worlds

failure = run_ranks(Job.from_json(sys.argv[1]), node_worlds([int(sys.argv[2])], 0, LOCALHOST, free_port()))
leave(failure)
