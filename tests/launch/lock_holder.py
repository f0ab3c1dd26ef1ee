"""A process that holds a folder until its input ends: `python -m launch.lock_holder FOLDER`; says "held"."""

import sys
from pathlib import Path

from pretrain.launch import run_lock as lock

lock.BEAT = 0.05
with lock.held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
