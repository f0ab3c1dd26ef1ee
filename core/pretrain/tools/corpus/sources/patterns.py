"""Expand comma lists and patterns to paths. A pattern leaves out the output of builds, and nothing else."""

from __future__ import annotations

import glob
import os
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.errors import DataError
from pretrain.tools.corpus.unfinished import FILES, INDEX, STATE, folder_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDS = (".bin", ".idx", ".tokenizer.json")


def expand(given: Path, output: Path | None = None) -> Iterator[Path]:
    """Split a comma list, unless a file has that name; expand patterns, sorted by name.

    Args:
        given: the user's input.
        output: a folder that will be made; no pattern may match it when the same command is given again.

    Raises:
        DataError: something does not exist, or `output` will be in a folder that a pattern matches.
    """
    names = [str(given)] if _exists(given) else [name.strip() for name in str(given).split(",") if name.strip()]
    for name in names:
        if _exists(Path(name)):
            yield Path(name)
        else:
            yield from _matches(name, output)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a comma list can be longer than a name may be
        return False


def _matches(pattern: str, output: Path | None) -> Iterator[Path]:
    found = list(map(Path, sorted(glob.glob(pattern, recursive=True))))  # noqa: PTH207  Path.glob takes no absolute pattern
    matches = [path for path in found if not _is_written_by_builds(path)]
    if not matches:
        nothing = "only the output of builds" if found else "no file"
        msg = f"{pattern} does not exist, and as a pattern it matches {nothing}."
        raise DataError(msg)
    for folder in output.parents if output else ():
        if not folder.exists() and _will_match(pattern, folder):
            msg = (
                f"the output {output} would be in {folder}, which {pattern} matches.\nGive an --output-prefix outside."
            )
            raise DataError(msg)
    folders = {path for path in matches if path.is_dir()}
    # `in/**` matches a folder and all that it holds; the folder is read as a whole.
    yield from (path for path in matches if folders.isdisjoint(path.parents))


def _is_written_by_builds(path: Path) -> bool:
    """Return whether a path belongs to a running build, or to one that has ended, even at this moment."""
    if ".partial" in str(path) and any(map(_is_unfinished, (path, *path.parents))):
        return True
    prefixes = [Path(str(path).removesuffix(end)) for end in _ENDS if path.name.endswith(end)]
    return any(_has_token_files(prefix) for prefix in prefixes)


def _has_token_files(prefix: Path) -> bool:
    folder = folder_of(prefix)  # checked first: the index is at its name before the folder is removed
    return (folder.exists() and _is_unfinished(folder)) or (bin_path(prefix).exists() and idx_path(prefix).exists())


def _is_unfinished(folder: Path) -> bool:
    if folder.suffix != ".partial" or folder.is_symlink():
        return False
    try:
        names = {name for name in os.listdir(folder) if not name.startswith(".")}  # noqa: PTH208  by far faster
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return bool(names & {STATE, "lock"}) or names <= {*FILES, INDEX}  # the second: while the folder is made or removed


def _will_match(pattern: str, folder: Path) -> bool:
    """Return whether a pattern would match a folder that does not exist yet."""
    wanted, names = Path(pattern).absolute().parts, folder.absolute().parts
    if "**" in wanted:
        wanted = wanted[: wanted.index("**")]
        names = names[: len(wanted)]
    return len(wanted) == len(names) and all(
        fnmatchcase(name, part) and name.startswith(".") <= part.startswith(".")
        for name, part in zip(names, wanted, strict=True)
    )
