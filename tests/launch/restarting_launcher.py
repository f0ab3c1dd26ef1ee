"""A launcher that restarts its ranks, as a process of its own: `restarting_launcher.py JOB NPROC`."""

import sys

from command_end import leave

from pretrain.launch.job import Job
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.processes.report_signal import ignore_report_signal
from pretrain.launch.rank_placement import Placement
from pretrain.launch.restarts.restart_policy import RestartPolicy
from pretrain.launch.start import start
from pretrain.recipe import load_recipe

ignore_report_signal()  # as the command line does
job, nproc = Job.from_json(sys.argv[1]), int(sys.argv[2])
placement = Placement(recipe=load_recipe(job.recipe), backend=None, nodes=Nodes(), nproc=nproc, world_size=nproc)
failure = start(placement, job, RestartPolicy(limit=3))
leave(failure)
