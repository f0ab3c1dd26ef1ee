"""One of two nodes with one rank each: `node_launcher.py JOB HOST:PORT`."""

import sys

from pretrain.launch.job import Job
from pretrain.launch.nodes.nodes import Nodes
from pretrain.launch.rank_placement import Placement
from pretrain.launch.start import start
from pretrain.recipe import load_recipe

job = Job.from_json(sys.argv[1])
nodes = Nodes(count=2, rendezvous=sys.argv[2])
placement = Placement(recipe=load_recipe(job.recipe), backend=None, nodes=nodes, nproc=1, world_size=2)
failure = start(placement, job)
if failure:
    print(failure, file=sys.stderr)
    sys.exit(failure.exit_code)
