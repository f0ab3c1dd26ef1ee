"""`pretrain run --hostfile` as a process of its own, with a fake training: `hosts_launcher.py JOB RANKS_OF_HOSTS`.

RESTARTS in the environment is the number of restarts, and perhaps that of the fewest nodes.
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

from command_end import leave

from pretrain.launch.hosts import start_hosts
from pretrain.launch.job import Job
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import PDSH, Hosted
from pretrain.launch.restarts.restart_policy import RestartPolicy
from pretrain.recipe import load_recipe

job = Job.from_json(sys.argv[1])
os.environ["FAKE_TRAINING"] = job.train.partition(":")[2]
file = Path(job.run_dir).with_name("hosts")
file.write_text("".join(f"host-{number} slots={slots}\n" for number, slots in enumerate(sys.argv[2])))
hosted = Hosted(hosts=read_hostfile(file), launcher=PDSH)
limit, fewest = (*map(int, os.environ.get("RESTARTS", "").split()), 0, 0)[:2]
policy = RestartPolicy(limit=limit, fewest_nodes=fewest or None)
with patch("pretrain.launch.restarts.host_attempts._PATIENCE", 5.0):
    failure = start_hosts(hosted, job, load_recipe(job.recipe), policy)
leave(failure)
