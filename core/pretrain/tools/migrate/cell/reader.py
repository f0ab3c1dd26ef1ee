"""Reading of a shell script: its user's bash runs it in a cell, and the programs that it starts are written down."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError
from pretrain.tools.migrate.cell.namespaces import parse_record, whole_commands, write_stubs
from pretrain.tools.migrate.cell.places import Places
from pretrain.tools.migrate.cell.trials import MARKER, Trials, asked_in, trainings_of
from pretrain.tools.migrate.setting import RuntimeValue, Word, require_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pretrain.tools.migrate.cell.namespaces import CellRecord, Told
    from pretrain.tools.migrate.setting import SourceLine

_IS_EMPTY = re.compile(r"(?:\[\[?|test) +(?:! +)?-[nz] ")
_BRANCH = re.compile(r"\s*(?:if|elif|while|until)\b")
_TAKES_ARGUMENTS = re.compile(r"\$\{?[@*#]|\bgetopts\b")
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Script:
    """A script that was run, or a command."""

    commands: tuple[tuple[Word, ...], ...]  # that it started, with the words of the launchers around them first
    files: Mapping[str, str] = field(default_factory=dict)  # texts that it wrote, by path as its commands name them
    unknown_files: Mapping[str, tuple[RuntimeValue, ...]] = field(default_factory=dict)  # others, with what they lack
    notices: tuple[str, ...] = ()  # lines for the user


def read_script(name: str, text: str, defined: Mapping[str, str], variables: Mapping[str, str]) -> Script:
    """Return the programs that a script starts, and the files that it writes; all of it happens in a cell."""
    # Of `defined`, "1", "2", ... are the script's arguments and "@" all of them; a program's name is what it prints.
    trials = Trials(Path(name).resolve(), text, defined, variables)
    told = trials.run()
    sources = (record.source for record in told.records.values())
    called = next((source for source in sources if Path(source).name == Path(name).name), Path(name).name)
    places = Places(name, text, called, told.records.values())
    require_known(_conditions(trials, told, places), ())
    if told.status and not [record for record in told.records.values() if record.kind == "run"]:
        why = (told.said.strip().splitlines() or [f"exit code {told.status}"])[-1]
        msg = f"{name}: bash stopped before it started a program: {why}\nCheck the script with: bash -n {name}"
        raise MigrateError(msg)
    script = script_of(told.records, places, _varying(trials, told))
    without_comments = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    if trials.arguments or "@" in defined or not _TAKES_ARGUMENTS.search(without_comments):
        return script
    notice = f"{name}: it ran without arguments; give some with --define @=\"8 'a b'\""
    return replace(script, notices=(*script.notices, notice))


def script_of(
    records: Mapping[str, CellRecord], places: Places, varying: Mapping[int, Mapping[int, str]] | None = None
) -> Script:
    """Return commands and files of what was written down; `varying` has names that words of commands depend on."""
    reasons = {  # where values that are not known were made, and by which command, by their names
        record.words[0]: (places.of(record), record.words[1].partition("=")[2] or record.words[1])
        for record in records.values()
        if record.kind == "unknown"
    }
    files: dict[str, str] = {}
    commands = []
    for at, (record, words) in enumerate(whole_commands(records)):
        commands.append(_words(words, places, places.of(record), reasons, (varying or {}).get(at, {})))
        files |= {path: text for path, text in record.files.items() if not _is_there(record, path, text)}
    asked = {path: asked_in(text, places.of(record), reasons) for path, text in files.items()}
    return Script(
        tuple(commands),
        {path: text for path, text in files.items() if not asked[path]},
        {path: names for path, names in asked.items() if names},
        tuple(dict.fromkeys(_notices(records.values(), places))),
    )


def _is_there(record: CellRecord, path: str, text: str) -> bool:
    """Say whether a file is one of the machine, and not written by the script."""
    there = Path(record.folder) / path
    return there.is_file() and there.read_text(encoding="utf-8", errors="replace").rstrip("\n") == text


def _words(
    words: Sequence[str],
    places: Places,
    command: SourceLine,
    reasons: Mapping[str, tuple[SourceLine, str]],
    varying: Mapping[int, str],
) -> tuple[Word, ...]:
    found = [
        Word(MARKER.sub("", text), place, asked_in(text, place, reasons))
        for text, place in zip(words, places.of_words(words, command), strict=True)
    ]
    for at, name in varying.items():
        place = found[at].place if at < len(found) else command
        word = Word("", place, (RuntimeValue(name, *reasons.get(name, (place, f"${name}"))),))
        found[at : at + 1] = [word]
    return tuple(found)


def _varying(trials: Trials, told: Told) -> dict[int, dict[int, str]]:
    """Return the words that depend on numbers which are not known: they differ when the number does."""
    commands = [words for _, words in whole_commands(told.records)]
    found: dict[int, dict[int, str]] = {}
    for name in trials.numbers:
        others = [words for _, words in whole_commands(trials.other(name).records)]
        for at, (one, other) in enumerate(zip(commands, others, strict=False)):
            for tag, start, end, _, _ in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
                differing = () if tag == "equal" else range(start, max(end, start + 1))
                found.setdefault(at, {}).update(dict.fromkeys(differing, name))
    return found


def _conditions(trials: Trials, told: Told, places: Places) -> list[RuntimeValue]:
    """Return the values on which it depends what the script does."""
    found: dict[str, list[CellRecord]] = {}
    for record in told.records.values():
        is_test = record.kind == "used" and record.words[1].startswith(("[", "test", "case"))
        is_branch = record.kind == "used" and _BRANCH.match(places.line(places.of(record))) is not None
        if record.kind == "condition" or is_test or is_branch:
            found.setdefault(record.words[0], []).append(record)
    empty = {name for name, of in found.items() if all(_IS_EMPTY.match(record.words[1]) for record in of)}
    same = {name for name in empty if name in trials.unset and trainings_of(trials.other(name)) == trainings_of(told)}
    asked = [
        RuntimeValue(name, places.of(record), f"depends on {record.words[1]}")
        for name, (record, *_) in found.items()
        if name not in same and name not in trials.defined
    ]
    for record, words in whole_commands(told.records):
        if record.unknown and any(word.endswith(".py") for word in words) and not any(map(MARKER.search, words)):
            why = f"a value is computed from the output of {record.unknown}"
            asked.append(RuntimeValue(record.unknown, places.of(record), why))
    return asked


def _notices(records: Iterable[CellRecord], places: Places) -> Iterator[str]:
    shown = 0
    for record in records:
        if record.kind == "missing":
            yield f"{places.of(record)}: {record.words[0]} does not exist, and counts as empty"
        elif record.kind == "files" and shown < _SHOWN:
            shown += 1
            yield f"{places.of(record)}: {record.words[0]} was decided by the files of this machine"


def capture(command: Sequence[str]) -> Script:
    """Run a command whose training programs are stubs, and return what it would start."""
    bash = shutil.which("bash")
    if bash is None:
        msg = "--capture needs bash for its stubs, and there is none here.\nGive the training's log, or its arguments."
        raise MigrateError(msg)
    with tempfile.TemporaryDirectory(prefix="pretrain-capture-") as folder:
        state = Path(folder)
        (state / "records").mkdir()
        stubs = write_stubs(state, bash, captures=True)
        environment = {
            **os.environ,
            "PATH": f"{stubs}:{os.environ.get('PATH', '')}",
            "CELL_REAL": "1",
            "CELL_SEEN": "0",
        }
        try:
            done = subprocess.run(command, env=environment, check=False)
        except OSError as error:
            msg = f"--capture: cannot start {command[0]}: {error.strerror}.\nGive a command such as -- bash train.sh"
            raise MigrateError(msg) from error
        records = {path.name: parse_record(path.read_bytes()) for path in (state / "records").iterdir()}
    script = script_of(records, Places(shlex.join(command), "", "", ()))
    ended = [f"{shlex.join(command)} ended with exit code {done.returncode}"] if done.returncode else []
    return replace(script, notices=(*script.notices, *ended))
