"""Find the inputs of a build, files, patterns, comma lists and folders in a fixed order, and a shard's part of them."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import OPENERS, InputFile
from pretrain.tools.corpus.unfinished import FILES, INDEX, STATE, folder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pretrain.tools.corpus.chunks import Kind

_KINDS: dict[str, Kind] = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "lines"),
    **dict.fromkeys((".txt", ".text", ".md", ".rst"), "text"),
    ".parquet": "parquet",
    ".arrow": "arrow",
}
_ENDS = (".bin", ".idx", ".tokenizer.json")
_Identity = tuple[int, int]  # device and inode: equal for two names of one folder


def _kind_of(path: Path, *, otherwise: Kind) -> Kind:
    suffix = Path(path.stem).suffix if path.suffix.lower() in OPENERS else path.suffix
    return _KINDS.get(suffix.lower(), otherwise)


def find_sources(inputs: Sequence[Path], *, otherwise: Kind = "lines", output: Path | None = None) -> list[InputFile]:
    """Return the files that `inputs` name, in that order; the files of a pattern or folder are sorted by name.

    A file that is named is JSONL unless its suffix says otherwise (.txt, .md, .rst, .parquet, .arrow). In a folder
    every other file is a text of one document; hidden files are left out. A folder written by Hugging Face's
    `save_to_disk` yields the rows of its dataset.
    """
    refuse = _refusing(output)
    parts = (part for given in inputs for part in expand(given, output))
    sources = [source for part in parts for source in _sources_of(part, otherwise, refuse)]
    if not sources:
        msg = f"{', '.join(map(str, inputs))}: no file found."
        raise DataError(msg)
    return sources


def _refusing(output: Path | None) -> Callable[[str | Path], _Identity]:
    """Return a function that gives a folder's identity, and raises DataError if `output` is in the folder."""
    above = [folder for folder in (output, *output.absolute().parents) if folder.exists()] if output else []
    taken = set(map(_identity, above))

    def refuse(folder: str | Path) -> _Identity:
        here = _identity(folder)
        if here in taken:
            msg = f"the output {output} would be in the input folder {folder}.\nGive an --output-prefix outside of it."
            raise DataError(msg)
        return here

    return refuse


def _identity(folder: str | Path) -> _Identity:
    found = os.stat(folder)  # noqa: PTH116  a Path for each folder is slower
    return found.st_dev, found.st_ino


def _sources_of(path: Path, otherwise: Kind, refuse: Callable[[str | Path], _Identity]) -> Iterator[InputFile]:
    if not path.is_dir():
        yield _source(path, _kind_of(path, otherwise=otherwise))
        return
    refuse(path)
    if (path / "state.json").is_file() and (path / "dataset_info.json").is_file():
        yield from (_source(file, "arrow") for file in _dataset_files(path))
    elif (path / "dataset_dict.json").is_file():
        splits = sorted(state.parent.name for state in path.glob("*/state.json"))
        msg = f"{path} has the dataset_dict.json of a dataset, but none of its splits.\nCopy the whole dataset."
        if splits:
            msg = f"{path} has several splits of a dataset: {', '.join(splits)}.\nName one, as {path / splits[0]}."
        raise DataError(msg)
    else:
        yield from (_source(file, _kind_of(file, otherwise="text")) for file in _files_below(path, refuse))


def _dataset_files(folder: Path) -> Iterable[Path]:
    try:
        state = json.loads((folder / "state.json").read_bytes())
        return [folder / entry["filename"] for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        msg = f"{folder / 'state.json'}, the list of the dataset's files, is damaged: {exc}.\nCopy it again."
        raise DataError(msg) from exc


def _files_below(folder: Path, refuse: Callable[[str | Path], _Identity]) -> list[Path]:
    """Return the files below a folder. Links to folders are followed, except to a folder that holds the link."""
    files: list[Path] = []
    left: list[tuple[str, frozenset[_Identity]]] = [(str(folder), frozenset())]
    while left:
        parent, above = left.pop()
        try:
            here = refuse(parent)
            with os.scandir(parent) as entries:
                shown = [] if here in above else [entry for entry in entries if not entry.name.startswith(".")]
            for entry in shown:
                if entry.is_dir():
                    left.append((entry.path, above | {here}))
                else:  # a pipe or a dead link is kept, and raises later
                    files.append(Path(entry.path))
        except OSError as exc:
            msg = f"{exc.filename or parent} cannot be read: {exc.strerror or exc}."
            raise DataError(msg) from exc
    return sorted(files)


def _source(path: Path, kind: Kind) -> InputFile:
    try:
        found = path.stat()
    except FileNotFoundError as exc:
        msg = f"{path} cannot be read: No such file or directory."
        if path.is_symlink():
            msg = f"{path} cannot be read: it is a link to {path.readlink()}, which is not there.\nRemove the link."
        raise DataError(msg) from exc
    except OSError as exc:
        msg = f"{path} cannot be read: {exc.strerror or exc}."
        raise DataError(msg) from exc
    if not stat.S_ISREG(found.st_mode):  # a pipe has no size, and a build that is continued reads again
        msg = f"{path} is a pipe or a device, not a file or a folder.\nWrite its content to a file first."
        raise DataError(msg)
    return InputFile(path, kind, found.st_size, 0, found.st_size)


def expand(given: Path, output: Path | None = None) -> Iterator[Path]:
    """Split a comma list, unless a file has that name; expand patterns, sorted by name."""
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
            where = f"{folder}, which the input {pattern} matches"
            msg = f"the output {output} would be in {where}.\nGive an --output-prefix outside of it."
            raise DataError(msg)
    folders = {path for path in matches if path.is_dir()}
    # `in/**` matches a folder and all that it holds; the folder is read as a whole.
    yield from (path for path in matches if folders.isdisjoint(path.parents))


def _is_written_by_builds(path: Path) -> bool:
    """Return whether a path belongs to a running build, or to one that has ended, even at this moment."""
    if ".partial" in str(path) and any(map(_is_unfinished, (path, *path.parents))):
        return True
    for prefix in (Path(str(path).removesuffix(end)) for end in _ENDS if path.name.endswith(end)):
        folder = folder_of(prefix)  # checked first: the index is at its name before the folder is removed
        if folder.exists() and _is_unfinished(folder):
            return True
        if bin_path(prefix).exists() and idx_path(prefix).exists():
            return True
    return False


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
    wanted, names = Path(pattern).absolute().parts, folder.absolute().parts
    if "**" in wanted:
        wanted = wanted[: wanted.index("**")]
        names = names[: len(wanted)]
    return len(wanted) == len(names) and all(
        fnmatchcase(name, part) and name.startswith(".") <= part.startswith(".")
        for name, part in zip(names, wanted, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count`, counted from 0."""

    number: int
    count: int

    @classmethod
    def parse(cls, given: str) -> Self:
        """Read "3/16"."""
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", given, re.ASCII)
        number, count = (int(part) for part in found.groups()) if found else (0, 0)
        if not number < count <= 99_999:
            msg = f"--shard is {given}.\nIt must be I/N with I from 0 to N - 1, as in 0/16, and N below 100,000."
            raise DataError(msg)
        return cls(number, count)

    @property
    def suffix(self) -> str:
        """End of its files' names; sorted by name, the shards are in order."""
        return f"-{self.number:05}-of-{self.count:05}"

    def of(self, sources: Sequence[InputFile]) -> list[InputFile]:
        """Return its part of the corpus; the parts of all shards, concatenated, are the corpus.

        A file of lines is cut between two of them; any other one is read whole by the shard with its first byte.
        """
        total = sum(source.size for source in sources)
        begin, end = total * self.number // self.count, total * (self.number + 1) // self.count
        is_last = self.number + 1 == self.count
        parts, before = [], 0
        for source in sources:
            low, high = max(begin - before, 0), min(end - before, source.size)
            if source.kind == "lines" and not source.compressed:
                if low < high:
                    parts.append(replace(source, begin=low, end=high))
            elif begin <= before < end or (is_last and before == end):
                parts.append(source)
            before += source.size
        return parts


def corpus_digest(sources: Sequence[InputFile], *options: object) -> str:
    """Return a hash of the whole corpus and of `options`: equal for all shards of one build, and for no others."""
    # A file that was added between two shards would move all cuts. Times of copies on several machines differ.
    digest = hashlib.sha256(repr(options).encode())
    for source in sources:
        digest.update(f"{source.path.absolute()}\0{source.kind}\0{source.size}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()
