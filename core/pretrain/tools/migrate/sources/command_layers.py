"""Layers around a Python program: launchers, environments, profilers; each is taken off a command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from pretrain.tools.migrate.sources.files import Launch
from pretrain.tools.migrate.sources.launchers import DEEPSPEED, MPIRUN, SRUN, TORCHRUN, names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.tools.migrate.setting import Word
    from pretrain.tools.migrate.sources.launchers import Launcher

LAUNCHERS: dict[str, Launcher] = {
    "torchrun": TORCHRUN,
    "deepspeed": DEEPSPEED,
    "deepspeed.py": DEEPSPEED,
    "srun": SRUN,
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun"), MPIRUN),
}
_MODULES = {
    **dict.fromkeys(("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic"), TORCHRUN),
    **dict.fromkeys(("deepspeed", "deepspeed.launcher.runner"), DEEPSPEED),
}
_WRAPPERS = names(
    "nohup time exec command builtin setsid env nice ionice numactl taskset timeout stdbuf unbuffer nsys ncu sudo"
    " singularity apptainer docker podman enroot ssh conda micromamba mamba poetry uv pipenv strace catchsegv script"
    " proxychains proxychains4"
)
"""Programs that start another one once; their options do not matter here."""

_ORDINARY = names(
    "echo printf cat cp mv ln ls rm mkdir rmdir chmod chown touch tee head tail wc grep egrep sed awk cut tr sort uniq"
    " diff cmp find which type whereis file stat du df tar zip unzip gzip xz scp rsync wget curl git pip pip3 apt-get"
    " apt vi vim nano less more kill pkill pgrep killall ps test [ [[ : set unset export declare local readonly"
    " typeset read source . cd pushd popd sleep wait trap exit return shift true false date hostname module ulimit"
    " umask alias eval let dos2unix sha256sum md5sum nvidia-smi npu-smi scontrol sinfo squeue scancel basename"
    " dirname realpath readlink seq xargs pdcp"
)
"""Programs that start no training, whatever their arguments say."""

_COUNTS = names("nproc_per_node nnodes num_gpus num_nodes nodes ntasks ntasks_per_node np npernode include host")
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_PYTHON_VALUED = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class UnwrappedCommand:
    """A command without its layers."""

    program: str  # path of the Python program as written; a module's has slashes and ".py". It may be no Python program
    words: tuple[Word, ...]  # of it: its name, and its arguments
    launch: Launch | None = None  # launcher; None if there is none that counts processes
    notices: tuple[str, ...] = ()  # lines for the user


@dataclass(slots=True)
class _Rest:
    words: tuple[Word, ...]
    launches: list[Launch]
    notices: list[str]
    batch: Mapping[str, Word]
    module: bool = False


def peel(words: Sequence[Word], batch: Mapping[str, Word]) -> UnwrappedCommand | None:
    """Take all layers off a command line; None for one that starts no training, such as echo."""
    if not words or _base(words[0]) in _ORDINARY:
        return None
    rest = _Rest(tuple(words), [], [], batch)
    while rest.words and not rest.module and not _is_program(rest.words[0]):
        if not _take(rest):
            break
    if not rest.words:
        return None
    program = rest.words[0].text
    program = program.replace(".", "/") + ".py" if rest.module else program
    return UnwrappedCommand(program, rest.words, _innermost(rest.launches), tuple(rest.notices))


def _take(rest: _Rest) -> bool:
    """Take off the first layer; return whether there was one."""
    base = _base(rest.words[0])
    if launcher := LAUNCHERS.get(base):
        _take_launcher(rest, launcher, rest.words[1:])
    elif _PYTHON.fullmatch(base):
        return _take_python(rest)
    elif base in _WRAPPERS:
        return _skip(rest)
    else:
        first = rest.words[0]
        shown = " ".join(f"${asked.name}" for asked in first.asked) or base
        if not _skip(rest):
            return False
        rest.notices.append(f"{first.place}: {shown} is not a known launcher; its options are ignored")
    return True


def _skip(rest: _Rest) -> bool:
    for index, word in enumerate(rest.words[1:], 1):
        if _starts(word):
            rest.words = rest.words[index:]
            return True
        launcher = _MODULES.get(word.text)
        if launcher and rest.words[index - 1].text == "-m":  # $PYTHON -m torch.distributed.run
            _take_launcher(rest, launcher, rest.words[index + 1 :])
            return True
    return False


def _take_python(rest: _Rest) -> bool:
    words = rest.words[1:]
    while words and words[0].text.startswith("-") and words[0].text != "-":
        text, words = words[0].text, words[1:]
        if text in _PYTHON_VALUED:
            words = words[1:]
        elif text.startswith("-c"):
            return False
        elif module := re.fullmatch(r"-[A-Za-ln-z]*m(.*)", text):
            attached = (replace(rest.words[0], text=module[1]),) if module[1] else ()
            return _take_module(rest, (*attached, *words))
    if words:
        rest.words = words
    return bool(words) and _is_program(words[0])


def _take_module(rest: _Rest, words: tuple[Word, ...]) -> bool:
    launcher = _MODULES.get(words[0].text) if words else None
    if launcher:
        _take_launcher(rest, launcher, words[1:])
        return True
    rest.words, rest.module = words or rest.words, bool(words)
    return bool(words)


def _take_launcher(rest: _Rest, launcher: Launcher, words: tuple[Word, ...]) -> None:
    place = rest.words[0].place
    given: dict[str, Word] = dict(rest.batch) if launcher is SRUN else {}
    unknown: list[Word] = []
    while words and (_is_unknown(words[0]) or (words[0].text.startswith("-") and words[0].text != "-")):
        if words[0].text == "--":
            words = words[1:]
            break
        unknown += words[:1] if _is_unknown(words[0]) else ()
        words = words[1:] if _is_unknown(words[0]) else _take_option(rest, launcher, words, given)
    rest.words = words
    rest.module = launcher in (TORCHRUN, DEEPSPEED) and bool(given.keys() & {"m", "module"})
    launch = Launch(place) if unknown else launcher.count(given, place)
    rest.launches.append(launch)
    rest.notices += [_wanted(word, "the launcher's options are") for word in unknown] or _unknown_counts(launch, given)


def _take_option(rest: _Rest, launcher: Launcher, words: tuple[Word, ...], given: dict[str, Word]) -> tuple[Word, ...]:
    """Put the option that comes first into `given`; return the words after it."""
    word, words = words[0], words[1:]
    written, equals, value = word.text.partition("=")
    name = _option(launcher, written)
    if name in launcher.paired:
        return words[2:]
    if name in launcher.switches:
        given[name] = word
        return words
    if equals:
        _give(launcher, given, name, replace(word, text=value))
    elif name in launcher.valued:
        _give(launcher, given, name, words[0] if words else replace(word, text=""))
        words = words[1:]
    elif written[1:2] in launcher.valued and not written.startswith("--"):
        _give(launcher, given, written[1], replace(word, text=written[2:]))  # -n8
        return words
    elif words and not words[0].text.startswith("-") and not _starts(words[0]):
        words = words[1:]
    if name not in launcher.valued:
        rest.notices.append(f"{word.place}: {written} is not a known option of the launcher; it is ignored")
    return words


def _give(launcher: Launcher, given: dict[str, Word], name: str, value: Word) -> None:
    given[launcher.same.get(name, name)] = value


def _option(launcher: Launcher, written: str) -> str:
    """Return the name of an option, which may be abbreviated as argparse and getopt take it."""
    name = written.lstrip("-").replace("-", "_")
    known = launcher.valued | launcher.switches | launcher.paired
    longer = [full for full in known if full.startswith(name)] if written.startswith("--") and len(name) > 2 else []
    return longer[0] if name not in known and len(longer) == 1 else name


def _unknown_counts(launch: Launch, given: Mapping[str, Word]) -> list[str]:
    lines = []
    for name in sorted(_COUNTS & given.keys()):
        word = given[name]
        if word.asked:
            lines.append(_wanted(word, f"the number of processes that {name} gives is"))
        elif name == "nnodes" and launch.nnodes is None:
            lines.append(f"{word.place}: the number of nodes is not one number: {word.text}")
    return lines


def _is_unknown(word: Word) -> bool:
    """Return whether nothing is known of a word, which may be several options, or none."""
    return bool(word.asked) and not word.text


def _wanted(word: Word, what: str) -> str:
    return f"{word.place}: {what} not known: give {', '.join(f'--define {asked.name}=...' for asked in word.asked)}"


def _innermost(launches: Sequence[Launch]) -> Launch | None:
    """Return the innermost launcher with the nodes of those around it: `srun -N 4 torchrun`."""
    if not launches:
        return None
    inner = launches[-1]
    for outer in reversed(launches[:-1]):
        nnodes = outer.nnodes if inner.nnodes is None else inner.nnodes
        inner = replace(inner, nnodes=nnodes, hostfile=inner.hostfile or outer.hostfile)
    return inner


def _base(word: Word) -> str:
    return PurePosixPath(word.text).name


def _is_program(word: Word) -> bool:
    return re.fullmatch(r"\S+\.py", word.text) is not None and _base(word) not in LAUNCHERS


def _starts(word: Word) -> bool:
    base = _base(word)
    return base in LAUNCHERS or base in _WRAPPERS or bool(_PYTHON.fullmatch(base)) or _is_program(word)
