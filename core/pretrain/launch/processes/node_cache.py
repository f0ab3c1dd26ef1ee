"""A copy of the Python environment on a node's own disk, made once, from which the node's processes import.

An import of torch, megatron-core and their like asks the file system some ten thousand times for a file. Where that is
one of many nodes, it answers all of them at once, at each start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

FOLDER = "PRETRAIN_NODE_CACHE"
"""Variable that names a folder on the node's own disk, for copies."""
_IN_COPY = "PRETRAIN_NODE_COPY"
"""Variable of the processes of a copy: they make none."""
_COPYING = 16  # files that are copied at once: on a network copying is waiting


def use_node_cache() -> None:
    """Begin this process again in the copy of its environment, which the first one of a node makes.

    Return where the variable is not set, in the copy, and, with a warning, where none can be made.
    """
    given, packages = os.environ.get(FOLDER), Path(sysconfig.get_path("purelib"))
    if not given or _IN_COPY in os.environ:
        return
    try:
        folder = _own_folder(Path(given))
        python = _copy(folder / f"python-{_key(packages)}", packages) / "bin" / "python"
        sys.stdout.flush()
        variables = {**os.environ, _IN_COPY: str(python)}
        os.execve(python, [str(python), *sys.orig_argv[1:]], variables)  # noqa: S606  an interpreter, its own arguments
    except (OSError, shutil.Error) as error:
        sys.stderr.write(
            f"warning: {FOLDER}={given}: the Python environment cannot be copied there: {_reason(error)}\n"
            f"It is read from {packages}.\n"
        )


def _own_folder(given: Path) -> Path:
    """Return a folder in the given one that nobody else can write: what is in it is executed."""
    if sys.prefix == sys.base_prefix and site.ENABLE_USER_SITE and Path(site.getusersitepackages()).is_dir():
        msg = "packages of the user come before those that would be copied; use a virtual environment"
        raise OSError(msg)
    folder = given.resolve() / f"pretrain-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o022:
        msg = f"{folder} can be written by others"
        raise OSError(msg)
    return folder


def _key(packages: Path) -> str:
    """Return what differs after an installation, which adds, removes or renames folders of the packages."""
    facts = (sys.prefix, sys.version, packages.stat().st_mtime_ns, sorted(each.name for each in packages.iterdir()))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _copy(copy: Path, packages: Path) -> Path:
    """Return the copy; make it if it is not there, while other processes of the node wait."""
    with _opened(copy.with_suffix(".lock")) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not copy.is_dir():
            begun, partial = time.monotonic(), copy.with_suffix(".partial")
            sys.stderr.write(f"Copying the Python environment from {packages} to {copy} ...\n")
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
            try:
                _make(partial, packages)
                _require_import(partial / "bin" / "python")
                partial.rename(copy)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)  # the run needs the room
                raise
            sys.stderr.write(f"Copied in {time.monotonic() - begun:.0f} s.\n")
    return copy


def _opened(lock: Path) -> BinaryIO:
    return os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb")


def _require_import(python: Path) -> None:
    """Check that libraries can be loaded from there: a disk may forbid it (noexec), or a path may lead elsewhere."""
    done = subprocess.run([python, "-P", "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"`import torch` fails there: {(done.stderr.strip().splitlines() or ['no message'])[-1]}"
        raise OSError(msg)


def _make(folder: Path, packages: Path) -> None:
    """Make a virtual environment (PEP 405) of the same interpreter, with a copy of its packages."""
    is_virtual = sys.prefix != sys.base_prefix
    base = Path(getattr(sys, "_base_executable", sys.executable))
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(base)
    # A virtual environment may see other packages than its own; an interpreter without one sees those of the user.
    sees_others = not is_virtual or "include-system-site-packages = true" in _settings()
    others = str(sees_others).lower()
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = {others}\n")
    copied = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    copied.mkdir(parents=True)
    with ThreadPoolExecutor(_COPYING) as pool:
        list(pool.map(lambda entry: _copy_entry(entry, copied / entry.name), sorted(packages.iterdir())))


def _settings() -> str:
    return Path(sys.prefix, "pyvenv.cfg").read_text()


def _copy_entry(source: Path, target: Path) -> None:
    """Copy a file or a folder with its times, by which Python knows that compiled files are up to date."""
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _reason(error: Exception) -> str:
    """Return one line, of the first file where there are many."""
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][-1])
    return str(error)
