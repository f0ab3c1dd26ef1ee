"""pdsh, mpirun and srun as `--hostfile` uses them, all hosts being this machine: `main(NAME)`.

Each writes down how it was called in FAKE_CALLS/NAME.json. ssh does not reach the hosts in
FAKE_UNREACHABLE, and those in FAKE_SILENT do not answer.
Nodes are in sessions of their own, as processes on other machines are, but end with the test.
"""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
from itertools import groupby
from pathlib import Path


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(commands, environments):
    """Run commands together; return the highest exit code, as pdsh -S and srun do."""
    start = _fork if subprocess.Popen.__module__ == "forked_python.client" else _start
    inherited = {name: value for name, value in os.environ.items() if name != "PRETRAIN_SHARED"}  # another machine's
    started = [start(command, inherited | given) for command, given in zip(commands, environments, strict=True)]
    return max(abs(process.wait()) for process in started)


def _start(command, environment):
    """Start a node; a command as text is one for the shell of its host."""
    return subprocess.Popen(
        command,
        env=environment,
        shell=isinstance(command, str),
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509  there are no threads
    )


def _fork(command, environment):
    """Fork a node; a shell reads its variables, as in `variables_file`, and what else a shell does is done here."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    folder = Path.cwd()
    if words[0] == "cd":
        _, folder, _, *words = words
    _, _, _, file, *words = words  # sh -c SCRIPT FILE COMMAND...
    read = ["sh", "-c", '. "$0"; env -0', file]
    variables = subprocess.run(read, env=environment, capture_output=True, text=True, check=True).stdout
    environment = dict(variable.split("=", 1) for variable in variables.split("\0") if variable)
    node = [sys.executable, __file__, "node", *words]
    return subprocess.Popen(node, env=environment, cwd=folder, start_new_session=True)


def node(words):
    end_with_parent()
    os.execv(words[0], words)


def options(arguments, values):
    """Split options from the command; `values`: number of words that follow an option, if any."""
    found = {}
    while arguments and arguments[0].startswith("-"):
        name, *arguments = arguments
        name, joined, value = name.partition("=")
        count = 0 if joined else values.get(name, 0)
        found[name], arguments = value if joined else " ".join(arguments[:count]), arguments[count:]
    return found, arguments


def pdsh(arguments):
    found, words = options(arguments, {"-R": 1, "-f": 1, "-w": 1})
    hosts = found["-w"].split(",")
    if words[0].startswith("echo "):
        return addresses([host.rpartition("@")[2] for host in hosts])
    command = " ".join(words).replace("%%", "\0")
    return run([command.replace("%n", str(node)).replace("\0", "%") for node in range(len(hosts))], [{}] * len(hosts))


def addresses(hosts):
    """Act as pdsh with `echo WORD %n $(hostname -I)`."""
    for node, host in enumerate(hosts):
        label = host.partition(".")[0]
        if host in os.environ.get("FAKE_SILENT", "").split(","):
            sys.stdout.flush()
            signal.pause()
        elif host in os.environ.get("FAKE_UNREACHABLE", "").split(","):
            print(f"{label}: ssh: connect to host {host} port 22: Connection refused", file=sys.stderr)
            print(f"pdsh@here: {label}: ssh exited with exit code 255", file=sys.stderr)
        else:
            print(f"{label}: pretrain-node {node} 127.0.0.1 10.9.9.9")
    return 255 if os.environ.get("FAKE_UNREACHABLE") else 0


def mpirun(arguments):
    found, arguments = options(arguments, {"--bind-to": 1, "-n": 0, "-host": 0})
    contexts = [["-n", *arguments]] if "-n" in found else []
    contexts = [list(words) for is_end, words in groupby(contexts[0], lambda word: word == ":") if not is_end]
    commands = [options(context, {"-n": 1, "-host": 1})[1] for context in contexts]
    size = len(commands)
    places = [
        {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": str(size), "PMIX_NAMESPACE": "prterun-1@1"}
        | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
        for rank in range(size)
    ]
    return run(commands, places)


def srun(arguments):
    """Start one task on each host, in alphabetical order, not in that of --nodelist."""
    found, command = options(arguments, {})
    hosts = sorted(found["--nodelist"].split(","))
    size = len(hosts)
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": str(size), "SLURM_STEP_NUM_TASKS": str(size)}
    job |= {"SLURM_STEP_TASKS_PER_NODE": f"1(x{size})", "SLURM_STEP_NODELIST": ",".join(hosts)}
    places = [
        job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)} for rank in range(size)
    ]
    return run([command] * size, places)


def main(name):
    """Act as the program of this name."""
    end_with_parent()
    given = sys.argv[1:]
    (Path(os.environ["FAKE_CALLS"]) / f"{name}.json").write_text(json.dumps(given))
    sys.exit({"pdsh": pdsh, "mpirun": mpirun, "srun": srun}[name](given))


if __name__ == "__main__":
    node(sys.argv[2:])
