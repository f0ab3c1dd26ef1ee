"""One of two nodes with one rank each: `node_launcher.py JOB HOST:PORT [RESTARTS [FEWEST_NODES]]`."""

import sys
from unittest.mock import patch

from command_end import leave

from pretrain.launch.job import Job
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.rank_placement import Placement
from pretrain.launch.restarts.restart_policy import RestartPolicy
from pretrain.launch.start import start
from pretrain.recipe import load_recipe

job = Job.from_json(sys.argv[1])
nodes = Nodes(count=2, rendezvous=sys.argv[2])
placement = Placement(recipe=load_recipe(job.recipe), backend=None, nodes=nodes, nproc=1, world_size=2)
limit, fewest = (*map(int, sys.argv[3:]), 0, 0)[:2]
with patch("pretrain.launch.restarts.meeting._SHORT_TIMEOUT", 1.0):
    failure = start(placement, job, RestartPolicy(limit=limit, fewest_nodes=fewest or None))
leave(failure)
