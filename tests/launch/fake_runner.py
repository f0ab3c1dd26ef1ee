"""DeepSpeed's launcher without DeepSpeed, which takes seconds: `fake_runner.py WORLD_SIZE SCRIPT FOLDER`.

Like deepspeed/launcher/launch.py it sets the variables of the ranks of a host, and ends all when one fails;
with FAKE_RUNNER_WAITS it does not.
"""

import os
import subprocess
import sys
import time

from pretrain.launch.processes.parent_exit import die_with
from pretrain.launch.world import LOCALHOST, free_port

die_with(os.getppid())  # a test that has failed kills the launcher
size, script, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
common = {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
common |= {"LOCAL_SIZE": str(size), "CROSS_RANK": "0", "CROSS_SIZE": "1"}
ranks = [
    subprocess.Popen(
        [sys.executable, script, folder], env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    )
    for rank in range(size)
]
while any(rank.poll() is None for rank in ranks):
    failed = [rank.returncode for rank in ranks if rank.poll()]
    if failed and "FAKE_RUNNER_WAITS" not in os.environ:
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait()
        sys.exit(failed[0])
    time.sleep(0.1)
sys.exit(max(abs(rank.returncode) for rank in ranks))
