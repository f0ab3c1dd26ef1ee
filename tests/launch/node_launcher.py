"""One of two nodes with one rank each: `node_launcher.py JOB HOST:PORT`."""

import sys

from pretrain.launch.job import Job
from pretrain.launch.nodes import Nodes
from pretrain.launch.plan import make_plan
from pretrain.launch.start import start

job = Job.from_json(sys.argv[1])
nodes = Nodes(count=2, rendezvous=sys.argv[2])
failure = start(make_plan(job.recipe, (), "cpu", nodes=nodes, nproc=1, world=None), job)
if failure:
    print(failure, file=sys.stderr)
    sys.exit(failure.exit_code)
