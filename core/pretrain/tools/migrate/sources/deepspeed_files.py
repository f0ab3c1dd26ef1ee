"""DeepSpeed files: as sources, and those that arguments name."""

from __future__ import annotations

import posixpath
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.errors import MigrateError, RecipeError
from pretrain.recipe.deepspeed.json_file import parse_json, read_json
from pretrain.tools.migrate.sources.source import Source

if TYPE_CHECKING:
    from pretrain.recipe.deepspeed.json_file import JsonFile
    from pretrain.tools.migrate.setting import Place


def read_deepspeed(name: str, text: str) -> Source:
    """Read a DeepSpeed file that is a source itself.

    Raises:
        MigrateError: it is not JSON with unique keys.
    """
    try:
        return Source(name, "deepspeed", deepspeed=parse_json(text, name, ""))
    except RecipeError as error:
        raise MigrateError(str(error)) from error


def deepspeed_file(source: Source, path: str, place: Place | None = None) -> JsonFile | None:
    """Read the DeepSpeed file that a source's arguments name.

    Args:
        source: the source; files that it writes itself come first.
        path: as the arguments have it, relative to the working directory or to the source's folder.
        place: of the argument, for errors.

    Returns:
        the file; None if the path is empty.

    Raises:
        MigrateError: it is missing, is not JSON, stands in both folders with different content, or the script writes it
            with values that are not known.
    """
    if not path:
        return None
    named_by = f"{place or source.name}: --deepspeed_config"
    written = posixpath.normpath(path)
    unknown = {posixpath.normpath(name): asked for name, asked in source.unknown_files.items()}
    if written in unknown:
        names = "".join(dict.fromkeys(f"{_definition(asked.name)}, or " for asked in unknown[written]))
        msg = (
            f"{named_by}: {path}: the script writes this file with values that are not known.\n"
            f"Give {names}the finished file as one more source."
        )
        raise MigrateError(msg)
    texts = {posixpath.normpath(name): text for name, text in source.files.items()}
    try:
        if written in texts:
            return parse_json(texts[written], f"{source.name}: {path}", named_by)
        return read_json(str(find_file(source.name, path, named_by)), named_by)
    except RecipeError as error:
        raise MigrateError(str(error)) from error


def _definition(name: str) -> str:
    return f"--define {shlex.quote(f'{name}=VALUE')}"


def find_file(source: str, path: str, named_by: str) -> Path:
    """Return the file that a script means by a relative path.

    Args:
        source: the script.
        path: as the script has it.
        named_by: where, for errors.

    Returns:
        the path in the working directory, or else in the script's folder; the former if there is none.

    Raises:
        MigrateError: both are there, and differ.
    """
    here, beside = Path(path), Path(source).parent / path
    if not here.is_file() and beside.is_file():
        return beside
    if here.is_file() and beside.is_file() and here.read_bytes() != beside.read_bytes():
        msg = f"{named_by}: {path}: {here} and {beside} differ.\nRemove the one that the training does not read."
        raise MigrateError(msg)
    return here
