"""Virtual machines of a small cluster: each has its own network, processes, mounts and host name; files are shared.

The kernel ends a node with its first process, which ends when the pipe from here closes: also when pytest is killed.
"""

import os
import subprocess
import time
from pathlib import Path

NUMBERS = range(4)
LIMIT = 600  # seconds, for what takes ten on a quiet machine
# What a node's own view replaces is this machine's for all others.
FIRST_PROCESS = """
set -e
hostname {name}
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/ssh /etc/ssh
mount -t tmpfs none /run
mkdir /run/sshd
ip link set lo up
echo ready
read -r _
"""
SPACES = ("--net", "--uts", "--mount", "--pid")


class Started:
    """A command on a node, whose output goes to a file."""

    def __init__(self, words, log):
        self.log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)

    def signal(self, number):
        os.kill(_only_child(self._process), number)

    def code(self, limit=LIMIT):
        """Wait for the end; return the exit code, negative after a signal."""
        wait_until(lambda: self._process.poll() is not None, lambda: f"goes on:\n{self.printed()}", limit)
        return self._process.returncode

    def wait_for(self, *texts, limit=LIMIT):
        """Wait until it has printed these, one after the other."""
        wait_until(lambda: self._has(texts) or self._process.poll() is not None, self.printed, limit)
        assert self._has(texts), f"ended with {self._process.returncode} without {texts}:\n{self.printed()}"

    def _has(self, texts):
        rest = self.printed()
        for text in texts:
            _, found, rest = rest.partition(text)
            if not found:
                return False
        return True

    def printed(self):
        return self.log.read_text(errors="replace")


class Node:
    """One machine, as its own processes see it."""

    def __init__(self, number, folder, environment):
        self.name, self.address = f"node{number}", address(number)
        self._environment = environment
        script = FIRST_PROCESS.format(name=self.name, folder=folder)
        words = ["unshare", *SPACES, "--fork", "--kill-child", "--mount-proc", "bash", "-c", script]
        self._holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout.readline() == "ready\n"
        self.pid = _only_child(self._holder)

    def close(self):
        """End all of its processes."""
        self._holder.stdin.close()
        self._holder.wait()

    def words(self, *command, cwd="/"):
        """Return the command line that executes a command there."""
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        enter = ["nsenter", "--target", str(self.pid), *SPACES, "--", "env", "--chdir", str(cwd), *variables]
        return [*enter, *map(str, command)]

    def run(self, *command, cwd="/"):
        """Return what a command printed; it must succeed."""
        done = subprocess.run(self.words(*command, cwd=cwd), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command} on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command, log, cwd="/"):
        return Started(self.words(*command, cwd=cwd), Path(log))

    def pids(self, *texts):
        """Return the processes of this node whose arguments have all these texts; the oldest first."""
        own = _space(self.pid)
        return sorted(pid for pid in _processes() if _space(pid) == own and all(text in _line(pid) for text in texts))


def connect(nodes):
    """Join the networks of the nodes by a bridge in that of the first."""
    first, *others = nodes
    _ip(first, "link add bridge type bridge")
    _ip(first, f"addr add {first.address}/24 dev bridge")
    _ip(first, "link set bridge up")
    for node in others:
        _ip(first, f"link add {node.name} type veth peer name eth0 netns {node.pid}")
        _ip(first, f"link set {node.name} master bridge up")
        _ip(node, f"addr add {node.address}/24 dev eth0")
        _ip(node, "link set eth0 up")


def set_link(nodes, node, state):
    """Cut the link of a node ("down"), or restore it ("up")."""
    _ip(nodes[0], f"link set {node.name} {state}")


def address(number):
    return f"10.77.0.{10 + number}"


def wait_until(is_so, message, limit=LIMIT):
    """Ask until it is so; a machine under load gets the time it needs."""
    end = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < end, f"not within {limit} s: {message()[-8000:]}"
        time.sleep(0.1)


def _ip(node, words):
    # Its network alone: the pid after `netns` is one of this machine.
    enter = ["nsenter", "--target", str(node.pid), "--net", "ip"]
    subprocess.run([*enter, *words.split()], check=True, timeout=60)


def _only_child(process):
    [pid] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def _processes():
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _space(pid):
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino
    except OSError:  # ended meanwhile
        return None


def _line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
