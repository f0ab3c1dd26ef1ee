"""pdsh, which starts a node on every host of a hostfile over ssh, with this process's environment variables."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import LaunchError
from pretrain.exit_codes import of_signal
from pretrain.launch.processes.supervision import stop_signals_handled
from pretrain.launch.schedulers import port_variable
from pretrain.launch.world import port_of
from pretrain.report.environment_file import COMMAND
from pretrain.report.plain_text import some_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pretrain.launch.nodes.nodes import Hosts
    from pretrain.plugins.backend import Backend

_MAX_FANOUT = 1024  # hosts that pdsh reaches at the same time; the others would start only when those have ended
_RANK = "%n"  # pdsh's word for the number of a host among those of -w
_TIMEOUT = 60.0
"""Seconds that all hosts get to answer; a thousand processes of ssh keep a login node busy for some of them."""
_PERIOD = 0.1
_END_TIMEOUT = 5.0  # seconds that pdsh then gets to end them
_SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=20"
_ANSWER = re.compile(r"pretrain-node (\d+)(.*)")
_NAMED = 8  # hosts that an error names at most


class UnreachedError(LaunchError):
    """Hosts have not answered."""

    def __init__(self, why: dict[str, str]) -> None:
        self.hosts = tuple(why)
        named = some_of([f"{name} ({reason})" for name, reason in why.items()], _NAMED)
        super().__init__(
            f"--hostfile: ssh does not reach {named}.\n"
            f"ssh must reach every host without a password: try `ssh {self.hosts[0]} true`."
        )


def require_pdsh() -> None:
    """Check that the programs that reach the hosts are installed here."""
    if missing := [program for program in ("pdsh", "ssh") if shutil.which(program) is None]:
        msg = (
            f"--hostfile: not on the PATH: {', '.join(missing)}.\n"
            "Install pdsh and an ssh client (Debian, Ubuntu, Fedora: the packages pdsh and openssh-client), or start "
            "every host yourself: --nnodes and --rdzv."
        )
        raise LaunchError(msg)


def rendezvous_endpoint(hosts: Hosts, environ: Mapping[str, str], attempt: int = 0) -> tuple[str, int]:
    """Return address and port of the rendezvous, on the first host; all hosts must answer."""
    # MASTER_ADDR and MASTER_PORT count, if the user has set them; MASTER_ADDR while its host is there. Each attempt has
    # a port of its own, unless the user has set one, since a node of one before may still serve that one's.
    port = port_variable(environ, port_of(os.getpid() + attempt))
    first = host_addresses(_pdsh(hosts), hosts.names)[0]  # names may be known to ssh alone
    if environ.get("MASTER_ADDR") and not hosts.is_first_lost:
        return environ["MASTER_ADDR"], port
    if not first:
        msg = (
            f"--hostfile: `hostname -I` gives no address on {hosts.names[0]}.\n"
            "Set MASTER_ADDR to an address of the first host that all hosts reach."
        )
        raise LaunchError(msg)
    return first[0], port


def pdsh_command(hosts: Hosts, run: Sequence[str], variables: Path) -> list[str]:
    """Return pdsh and its arguments, for the command of all nodes, to which each adds --node-rank."""
    node = with_variables(variables, [*run, "--node-rank", _RANK])
    return [*_pdsh(hosts), f"cd {_quoted(str(Path.cwd()))} && {' '.join(map(_quoted, node))}"]


def _pdsh(hosts: Hosts) -> list[str]:
    return ["pdsh", "-R", "ssh", "-S", "-f", str(_MAX_FANOUT), "-w", ",".join(hosts.names)]


def _quoted(word: str) -> str:
    """Quote a word for the shells of the hosts, and for pdsh, which replaces %n, %h and %u."""
    return word if word == _RANK else shlex.quote(word).replace("%", "%%")


def host_addresses(pdsh: Sequence[str], names: Sequence[str]) -> list[list[str]]:
    """Return the addresses of each host, as `hostname -I` gives them there; called in the main thread."""
    options = " ".join(filter(None, [os.environ.get("PDSH_SSH_ARGS_APPEND"), _SSH_OPTIONS]))
    environment = os.environ | {"PDSH_SSH_ARGS_APPEND": options}
    answers, errors = _output([*pdsh, "-b", "echo pretrain-node %n $(hostname -I)"], environment)
    found = {int(node): addresses.split() for node, addresses in _ANSWER.findall(answers.decode())}
    why = {name: _reason(name, errors.decode(errors="replace")) for node, name in enumerate(names) if node not in found}
    if why:
        raise UnreachedError(why)
    return [found[node] for node in range(len(names))]


def _output(command: Sequence[str], environment: Mapping[str, str]) -> tuple[bytes, bytes]:
    """Return what pdsh writes in time; after the timeout, or a signal to this process, no ssh is left."""
    # Each ssh has a session of its own. With -b, pdsh ends all of them on SIGINT.
    stopped: list[int] = []  # an exception of a handler could come before the program is known here
    deadline, pipe = time.monotonic() + _TIMEOUT, subprocess.PIPE
    with (
        stop_signals_handled(lambda number, _: stopped.append(number)),
        subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        ) as program,
    ):
        ended, output = _written(program, _PERIOD)
        while not ended and not stopped and time.monotonic() < deadline:
            ended, output = _written(program, _PERIOD)
        if not ended:
            program.send_signal(signal.SIGINT)
            _, output = _written(program, _END_TIMEOUT)
            program.kill()
    if stopped:
        raise SystemExit(of_signal(stopped[0]))
    return output


def _written(program: subprocess.Popen[bytes], seconds: float) -> tuple[bool, tuple[bytes, bytes]]:
    try:
        return True, program.communicate(timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return False, (late.stdout or b"", late.stderr or b"")


def _reason(name: str, errors: str) -> str:
    """Return what ssh says last about a host; pdsh writes the name before it, perhaps without the domain."""
    host = name.rpartition("@")[2]
    lines = (line.partition(": ") for line in errors.splitlines())
    said = [words for label, _, words in lines if label in {host, host.partition(".")[0]}]
    return said[-1] if said else "no answer"


# Values of variables may be secrets, and every user of a machine can read the command lines of its processes. ssh hands
# on neither an environment nor an input here: a file brings them, in the folder of the run, which all hosts share.
_APPEARANCE_TIMEOUT = 60  # seconds that a network file system gets to show the file on another host
_OPEN = """\
fail() { echo "$(uname -n): $1" >&2; exit 2; }
(n=SECONDS; until [ -e "$0" ] || [ $n -le 0 ]; do n=$((n - 1)); sleep 1; done)
[ -e "$0" ] || fail "$0 is not there: all hosts must see the folder of the run."
[ -r "$0" ] || fail "$(id -un) cannot read $0: log in there as the user who starts the run."
exec 3<"$0"
"""
_REQUIRE_OWNER = """\
[ -O /dev/fd/3 ] || fail "$0 is not owned by $(id -un): log in there as the user who starts the run."
"""
_SET_AND_EXECUTE = '. /dev/fd/3; exec 3<&-; exec "$@"'
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # names that a shell can set
_PREFIXES = ("PRETRAIN_", "PYTHON", "UCX", "MLFLOW", "MV2")


def exported_variables(environ: Mapping[str, str], backend: Backend) -> dict[str, str]:
    """Return the variables for all nodes: those of .deepspeed_env win over those of this process."""
    prefixes = (*_PREFIXES, *backend.exported_variables)
    found = {
        name: value
        for name, value in environ.items()
        if name.startswith(prefixes) and name not in backend.own_variables
    }
    found |= {COMMAND: shlex.join(sys.argv), "PYTHONUNBUFFERED": "1"}
    return found | _variables_of_files(environ)


def warn_of_own_variables(environ: Mapping[str, str], backend: Backend) -> None:
    """Name on stderr the variables that stay here because they are valid on one host only."""
    kept = [name for name in backend.own_variables if name in environ]
    if kept:
        sys.stderr.write(
            f"--hostfile does not pass {', '.join(kept)} to the ranks: such values are valid on one host only.\n"
            "Set it on each host, or in .deepspeed_env if it is the same on all.\n"
        )


def _variables_of_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Read lines NAME=VALUE of .deepspeed_env in the home and in the working directory; the latter wins."""
    found: dict[str, str] = {}
    name = environ.get("DS_ENV_FILE", ".deepspeed_env")
    for path in (Path(os.path.expanduser("~"), name), Path(name)):  # noqa: PTH111  Path.home() fails without a home
        if not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            variable, equals, value = line.partition("=")
            if not equals or not NAME.fullmatch(variable.strip()):
                msg = (
                    f"{path}, line {number}: '{line}' is not NAME=VALUE.\n"
                    "Write one variable per line, without `export`; a name has the letters A to Z, digits and _."
                )
                raise LaunchError(msg)
            found[variable.strip()] = value.strip()
    return found


@contextmanager
def variables_file(folder: Path, variables: Mapping[str, str]) -> Iterator[Path]:
    """Write a shell script that exports the variables, for its owner alone; remove it when the block ends."""
    try:
        path = _write(folder.absolute(), variables)
    except OSError as error:
        msg = (
            f"{folder} cannot be written: {error.strerror}.\nThe hosts read their variables there: pass --run-dir DIR."
        )
        raise LaunchError(msg) from error
    try:
        yield path
    finally:
        remove(path)


def remove(path: Path) -> None:
    """Remove the file, if it is still there; a file system that fails now must not hide how the run ended."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def with_variables(path: Path, command: list[str]) -> list[str]:
    """Return the command with the variables of the file; a shell sets them, since some count when Python starts."""
    # On some network file systems root's files belong to nobody, on this host too.
    owned = not path.exists() or path.stat().st_uid == os.geteuid()
    check = _REQUIRE_OWNER if owned else ""
    script = _OPEN.replace("SECONDS", str(_APPEARANCE_TIMEOUT)) + check + _SET_AND_EXECUTE
    return ["sh", "-c", "; ".join(script.splitlines()), str(path), *command]


def _write(folder: Path, variables: Mapping[str, str]) -> Path:
    descriptor, path = tempfile.mkstemp(prefix=".variables-", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.writelines(
                f"export {name}={shlex.quote(value)}\n" for name, value in variables.items() if NAME.fullmatch(name)
            )
    except OSError:
        remove(Path(path))
        raise
    return Path(path)
