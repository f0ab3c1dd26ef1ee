"""`pretrain run --hostfile` as a process of its own, with a fake training: `hosts_launcher.py JOB RANKS_OF_HOSTS`."""

import os
import sys
from pathlib import Path

from pretrain.launch.hosts import start_hosts
from pretrain.launch.job import Job
from pretrain.launch.nodes.hostfile import read_hostfile
from pretrain.launch.nodes.launchers import PDSH, Hosted

job = Job.from_json(sys.argv[1])
os.environ["FAKE_TRAINING"] = job.train.partition(":")[2]
file = Path(job.run_dir).with_name("hosts")
file.write_text("".join(f"host-{number} slots={slots}\n" for number, slots in enumerate(sys.argv[2])))
failure = start_hosts(Hosted(hosts=read_hostfile(file), launcher=PDSH), job)
if failure:
    print(failure, file=sys.stderr)
    sys.exit(failure.exit_code)
