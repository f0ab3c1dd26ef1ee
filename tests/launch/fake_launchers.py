"""pdsh, ssh, mpirun and srun as far as DeepSpeed uses them, all hosts being this machine: `fake_launchers.py NAME ...`.

Each writes down how it was called in FAKE_CALLS/NAME.json. ssh does not reach the hosts in FAKE_UNREACHABLE.
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def run(commands, environments):
    """Run commands together; return the highest exit code, as pdsh -S and srun do."""
    started = [
        subprocess.Popen(command, env=os.environ | environment, shell=isinstance(command, str))
        for command, environment in zip(commands, environments, strict=True)
    ]
    return max(abs(process.wait()) for process in started)


def options(arguments, values):
    """Split options from the command; `values` says how many words follow an option, where it is not none."""
    found = {}
    while arguments and arguments[0].startswith("-"):
        name, *arguments = arguments
        name, joined, value = name.partition("=")
        count = 0 if joined else values.get(name, 0)
        found[name], arguments = value if joined else " ".join(arguments[:count]), arguments[count:]
    return found, arguments


def pdsh(arguments):
    found, words = options(arguments, {"-f": 1, "-w": 1})
    hosts = found["-w"].split(",")
    return run([" ".join(words).replace("%n", str(node)) for node in range(len(hosts))], [{}] * len(hosts))


def ssh(arguments):
    _, (host, *words) = options(arguments, {"-o": 1, "-p": 1})
    if host in os.environ.get("FAKE_UNREACHABLE", "").split(","):
        return 255
    if words == ["hostname", "-I"]:
        print("127.0.0.1 10.9.9.9")
    return 0


def mpirun(arguments):
    found, command = options(arguments, {"-n": 1, "-hostfile": 1, "--mca": 2, "-x": 1, "--bind-to": 1})
    size = int(found["-n"])
    places = [
        {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "PMIX_NAMESPACE": "prterun-1@1"}
        | {"OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size)}
        for rank in range(size)
    ]
    return run([command] * size, places)


def srun(arguments):
    found, command = options(arguments, {"-n": 1, "--nodelist": 1, "--nodes": 1})
    size, each = int(found["-n"]), int(found["--ntasks-per-node"])
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(size), "SLURM_STEP_NUM_TASKS": str(size)}
    job |= {"SLURM_STEP_TASKS_PER_NODE": f"{each}(x{size // each})", "SLURM_JOB_NODELIST": "localhost"}
    places = [
        job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % each), "SLURM_NODEID": str(rank // each)}
        for rank in range(size)
    ]
    return run([command] * size, places)


if __name__ == "__main__":
    name, *given = sys.argv[1:]
    (Path(os.environ["FAKE_CALLS"]) / f"{name}.json").write_text(json.dumps(given))
    sys.exit({"pdsh": pdsh, "ssh": ssh, "mpirun": mpirun, "srun": srun}[name](given))
