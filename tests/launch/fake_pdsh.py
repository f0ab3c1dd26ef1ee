"""pdsh as `--hostfile` uses it, all hosts being this machine: `main()`.

It writes down how it was called in FAKE_CALLS/pdsh.json. ssh does not reach the hosts in FAKE_UNREACHABLE, and those in
FAKE_SILENT do not answer. Nodes are in sessions of their own, as on other machines, but end with the test.
"""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def run(commands):
    """Run the commands of the hosts' shells together; return the highest exit code, as pdsh -S does."""
    start = _fork if subprocess.Popen.__module__ == "forked_python.client" else _start
    environment = {name: value for name, value in os.environ.items() if name != "PRETRAIN_SHARED"}  # another machine's
    started = [start(command, environment) for command in commands]
    return max(abs(process.wait()) for process in started)


def _start(command, environment):
    return subprocess.Popen(
        command,
        env=environment,
        shell=True,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509  there are no threads
    )


def _fork(command, environment):
    """Fork a node; a shell reads its variables, as in `variables_file`, and what else a shell does is done here."""
    _, folder, _, *words = shlex.split(command)  # cd FOLDER && ...
    _, _, _, file, *words = words  # sh -c SCRIPT FILE COMMAND...
    read = ["sh", "-c", '. "$0"; env -0', file]
    variables = subprocess.run(read, env=environment, capture_output=True, text=True, check=True).stdout
    environment = dict(variable.split("=", 1) for variable in variables.split("\0") if variable)
    node = [sys.executable, __file__, "node", *words]
    return subprocess.Popen(node, env=environment, cwd=folder, start_new_session=True)


def node(words):
    end_with_parent()
    os.execv(words[0], words)


def pdsh(arguments):
    values, found = {"-R", "-f", "-w"}, {}
    while arguments[0].startswith("-"):
        name, *arguments = arguments
        if name in values:
            found[name], *arguments = arguments
    hosts, command = found["-w"].split(","), " ".join(arguments)
    if command.startswith("echo "):
        return addresses([host.rpartition("@")[2] for host in hosts])
    command = command.replace("%%", "\0")
    return run([command.replace("%n", str(node)).replace("\0", "%") for node in range(len(hosts))])


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


def main():
    """Act as pdsh."""
    end_with_parent()
    (Path(os.environ["FAKE_CALLS"]) / "pdsh.json").write_text(json.dumps(sys.argv[1:]))
    sys.exit(pdsh(sys.argv[1:]))


if __name__ == "__main__":
    node(sys.argv[2:])
