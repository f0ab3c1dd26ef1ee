"""Arguments that a training writes into its log when it starts."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.setting import Setting, SourceLine
from pretrain.tools.migrate.sources.files import MigrateSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST = re.compile(r"(?P<prefix>.*?)(?P<dashes>-{16,}) arguments -{16,}\s*")
_LAST = re.compile(r"-{12,} end of arguments -{12,}")
_ENTRY = re.compile(r"  (?P<name>[A-Za-z_]\w*) (?P<dots>\.*)(?: (?P<value>.*))?")

_LONGEST = 2000
"""Characters of a title's line; a search in a longer one could take minutes."""

_NEOX_DASHES = 20
"""Length of the line before the title in GPT-NeoX (`NeoXArgs.print`); Megatron-LM's `_print_args` has 24."""

_NEOX_WIDTH = 64
_NEOX_ORIGIN = re.compile(r"(?:updated|default)$")


@dataclass(frozen=True, slots=True)
class _Dump:
    start: int  # line of its title, from 1
    prefix: str  # of its lines: a rank, or a time
    neox: bool  # whether GPT-NeoX wrote it
    lines: list[tuple[int, str]]  # with their numbers, without the prefix
    complete: bool  # whether its end was found


def has_arguments(text: str) -> bool:
    """Return whether a text has the title of such a dump."""
    return " arguments ---" in text and any(_title(line) for line in text.split("\n"))


def _title(line: str) -> re.Match[str] | None:
    return _FIRST.fullmatch(line) if len(line) < _LONGEST and " arguments ---" in line else None


def read_log(name: str, text: str) -> MigrateSource:
    """Read the first dump of a log, which has all arguments, those that the program worked out too."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    dumps = [_dump(lines, number, found) for number, line in enumerate(lines, 1) if (found := _title(line))]
    dump = dumps[0]
    if not dump.complete:
        msg = f"{name}:{dump.start}: the list of arguments here has no end.\nGive the whole log."
        raise MigrateError(msg)
    settings, unread = _settings(name, dump)
    if not settings:
        msg = f"{name}:{dump.start}: the list of arguments here is empty.\nGive the log of the first rank."
        raise MigrateError(msg)
    notices = (*unread, *_others(name, dump, settings, dumps[1:]))
    return MigrateSource(name, "log", "train.py" if dump.neox else "", settings=settings, notices=notices)


def _dump(lines: Sequence[str], start: int, first: re.Match[str]) -> _Dump:
    escaped = re.escape(first["prefix"])
    has_time = re.search(r"\d+:\d+:\d+", first["prefix"]) is not None  # times differ, a rank stays
    prefix = re.compile(re.sub(r"\d+", r"\\d+", escaped) if has_time else escaped)
    inner: list[tuple[int, str]] = []
    complete = False
    for number, line in enumerate(lines[start:], start + 1):
        before = prefix.match(line)
        if before is None:
            continue  # another rank's
        rest = line[before.end() :]
        if _LAST.match(rest.lstrip()):
            complete = True
            break
        if _title(line):
            break
        inner.append((number, rest))
    return _Dump(start, first["prefix"], len(first["dashes"]) == _NEOX_DASHES, inner, complete)


def _settings(name: str, dump: _Dump) -> tuple[dict[str, Setting], list[str]]:
    settings: dict[str, Setting] = {}
    unread: list[str] = []
    for number, line in dump.lines:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            if line.strip():
                unread.append(f"{name}:{number}: not an argument, so it is ignored: {line.strip()[:60]}")
            continue
        place = SourceLine(name, number)
        if entry["name"] in settings:
            msg = f"{place}: {entry['name']} is listed twice: these are two logs in one.\nGive one log."
            raise MigrateError(msg)
        text = _neox_value(line, entry) if dump.neox else entry["value"] or ""
        settings[entry["name"]] = Setting(entry["name"], value_of(text), entry["name"], place)
    return settings, unread


def _neox_value(line: str, entry: re.Match[str]) -> str:
    """Return the value without what follows it: dots up to a column, and "default" or "updated"."""
    value = entry["value"] or ""
    bare = _NEOX_ORIGIN.sub("", value)
    end = len(line) - (len(value) - len(bare))
    return bare.rstrip(".") if end == _NEOX_WIDTH else bare


def _others(name: str, dump: _Dump, settings: dict[str, Setting], others: Sequence[_Dump]) -> Iterator[str]:
    for other in others:
        if not other.complete:
            continue
        values = {key: setting.value for key, setting in _settings(name, other)[0].items()}
        first = {key: setting.value for key, setting in settings.items()}
        differ = sorted(key for key in first.keys() | values.keys() if first.get(key) != values.get(key))
        if differ:
            shown = ", ".join(differ[:3]) + (", ..." if differ[3:] else "")
            line = f"only the list in line {dump.start} is read"
            yield f"{name}:{other.start}: this second list of arguments has other values of {shown}; {line}"


_DTYPES = {"torch.float32": "fp32", "torch.float16": "fp16", "torch.half": "fp16", "torch.bfloat16": "bf16"}
"""What flags call a dtype; Megatron-LM's `validate_args` puts torch's in the place of their text."""

_ENUMS = re.compile(r"(?:AttnBackend|CudaGraphScope|CudaGraphModule|ModelType)\.(\w+)")
"""Enumerations that Megatron-LM's parser makes of a text. Others are not guessed: "Vocab.json" is a file."""

_MEMBER = re.compile(r"<\w+\.(\w+): [^<>]*>")
_PLAIN = (bool, int, float, type(None), list, dict)


def value_of(text: str) -> Any:
    """Return the value whose text a log shows."""
    # A text stays a text unless the value that it reads as is shown in exactly the same way. So "949,50,1" is not a
    # tuple, "10_000" and "1.0e-5" are not numbers, and str() gives the text of every number back.
    if text in _DTYPES:
        return _DTYPES[text]
    if member := _ENUMS.fullmatch(text):
        return member[1]
    plain = _MEMBER.sub(lambda found: repr(found[1]), text)
    if plain != text and not plain.startswith("["):
        return ast.literal_eval(plain) if plain.startswith("'") else text
    if plain in {"inf", "-inf", "nan"}:
        return float(plain)
    try:
        value = ast.literal_eval(plain)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return plain
    return value if isinstance(value, _PLAIN) and repr(value) == plain else plain
