"""Sources of settings, as they are after reading."""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pretrain.errors import MigrateError, RecipeError, did_you_mean
from pretrain.recipe.deepspeed.json_file import parse_json, read_json
from pretrain.recipe.section import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.setting import RuntimeValue, Setting, SourceLine, Word

Kind = Literal["script", "arguments", "log", "neox", "deepspeed", "megatron_yaml"]


@dataclass(frozen=True, slots=True)
class Launch:
    """Number of processes that a source starts, and where."""

    place: SourceLine  # of the launcher
    nproc: int | None = None  # processes of a node; None if the source does not say
    nnodes: int | None = None  # nodes; None if the source does not say
    hostfile: str = ""  # a file of hosts; empty for none


@dataclass(frozen=True, slots=True)
class MigrateSource:
    """One source, read but not yet understood."""

    name: str  # as the user named it; several GPT-NeoX files are one source
    kind: Kind  # of which it was recognized
    program: str = ""  # file name of the Python program that it starts, "pretrain_gpt.py"; empty if it starts none
    words: tuple[Word, ...] = ()  # arguments of that program
    settings: Mapping[str, Setting] = field(default_factory=dict)  # of a log or a YAML file, by name
    deepspeed: JsonFile | None = None  # keys of a DeepSpeed file
    files: Mapping[str, str] = field(default_factory=dict)  # texts that a script would write, by path
    preprocessing: tuple[tuple[Word, ...], ...] = ()  # arguments of each preprocess_data.py that it starts
    launch: Launch | None = None  # its launcher; None if it has none
    notices: tuple[str, ...] = ()  # lines for the user
    unknown_files: Mapping[str, tuple[RuntimeValue, ...]] = field(default_factory=dict)  # others, with what they lack
    read_names: frozenset[str] = frozenset()  # names of variables, and of a script's arguments, that its text reads


_MOST = 16 * 2**20
"""Bytes that are read: a log has its arguments at its beginning, and everything else is far smaller."""

_LARGEST = 4_000_000
"""Characters of a script or a file of settings."""


@dataclass(frozen=True, slots=True)
class Text:
    """The beginning of a file."""

    text: str  # without a byte order mark
    is_large: bool  # whether the file has more than a script or a file of settings


def read_text(name: str) -> Text:
    """Read a file."""
    try:
        name = str(local_path(name))
    except ValueError as error:
        raise MigrateError(str(error)) from error
    path = Path(name)
    if path.is_dir():
        msg = f"{name} is a folder.\nGive the launch script or the file of settings in it."
        raise MigrateError(msg)
    try:
        with path.open("rb") as file:
            data = file.read(_MOST + 1)
    except FileNotFoundError as error:
        near = did_you_mean(path.name, [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else [])
        msg = f"{name} does not exist.{near}\nGive a launch script, a log, or a file of settings."
        raise MigrateError(msg) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        msg = f"{name} cannot be read: {getattr(error, 'strerror', None) or error}."
        raise MigrateError(msg) from error
    is_cut = len(data) > _MOST
    if b"\0" in data[:_MOST]:
        msg = f"{name} is not a text file.\nGive a launch script, a log, or a file of settings."
        raise MigrateError(msg)
    try:
        # A character that the limit cuts in two must not make the text unreadable.
        text = data[:_MOST].decode("utf-8-sig", errors="ignore" if is_cut else "strict")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        msg = f"{name}:{line}: this is not UTF-8 text.\nSave the file as UTF-8."
        raise MigrateError(msg) from error
    return Text(text, is_large=is_cut or len(text) > _LARGEST)


def read_deepspeed(name: str, text: str) -> MigrateSource:
    """Read a DeepSpeed file that is a source itself."""
    try:
        return MigrateSource(name, "deepspeed", deepspeed=parse_json(text, name, ""))
    except RecipeError as error:
        raise MigrateError(str(error)) from error


def deepspeed_file(source: MigrateSource, path: str, place: SourceLine | None = None) -> JsonFile | None:
    """Read the DeepSpeed file that a source's arguments name; one that the source writes itself comes first."""
    if not path:
        return None
    named_by = f"{place or source.name}: --deepspeed_config"
    written = posixpath.normpath(path)
    unknown = {posixpath.normpath(name): asked for name, asked in source.unknown_files.items()}
    if written in unknown:
        names = dict.fromkeys(shlex.quote(f"{asked.name}=VALUE") for asked in unknown[written])
        msg = (
            f"{named_by}: {path}: the script writes unknown values into this file.\n"
            f"Give {''.join(f'--define {name}, or ' for name in names)}the finished file as one more source."
        )
        raise MigrateError(msg)
    texts = {posixpath.normpath(name): text for name, text in source.files.items()}
    try:
        if written in texts:
            return parse_json(texts[written], f"{source.name}: {path}", named_by)
        return read_json(str(find_file(source.name, path, named_by)), named_by)
    except RecipeError as error:
        raise MigrateError(str(error)) from error


def find_file(source: str, path: str, named_by: str) -> Path:
    """Return the file that a script means by a relative path: that of the working directory, else of its folder."""
    here, beside = Path(path), Path(source).parent / path
    if not here.is_file() and beside.is_file():
        return beside
    if here.is_file() and beside.is_file() and here.read_bytes() != beside.read_bytes():
        msg = f"{named_by}: {path}: {here} and {beside} differ.\nRemove the one that the training does not read."
        raise MigrateError(msg)
    return here
