"""Split a corpus into consecutive shards of about equal size, for processes that do not communicate."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pretrain.tools.corpus.chunks import InputFile

_NAME = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class Shard:
    """Part `number` of `count`, counted from 0."""

    number: int
    count: int

    @classmethod
    def parse(cls, given: str) -> Self:
        """Read "3/16".

        Raises:
            DataError: the text is malformed or out of range.
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", given, re.ASCII)
        number, count = (int(part) for part in found.groups()) if found else (0, 0)
        if not number < count <= 99_999:
            msg = f"--shard is {given}; it is I/N with I from 0 to N - 1, as in 0/16, and N below 100,000."
            raise DataError(msg)
        return cls(number, count)

    @property
    def suffix(self) -> str:
        """End of its files' names; sorted by name, the shards are in order."""
        return f"-{self.number:05}-of-{self.count:05}"

    def of(self, sources: Sequence[InputFile]) -> list[InputFile]:
        """Return its part of the corpus; the parts of all shards, concatenated, are the corpus.

        An uncompressed file of lines is cut between two lines; any other file is read whole by the shard that holds its
        first byte.
        """
        total = sum(source.size for source in sources)
        return list(self._parts(sources, *(total * part // self.count for part in (self.number, self.number + 1))))

    def _parts(self, sources: Sequence[InputFile], begin: int, end: int) -> Iterator[InputFile]:
        last = self.number + 1 == self.count
        before = 0
        for source in sources:
            low, high = max(begin - before, 0), min(end - before, source.size)
            if source.kind == "lines" and not source.compressed:
                if low < high:
                    yield replace(source, begin=low, end=high)
            elif begin <= before < end or (last and before == end):
                yield source
            before += source.size


def corpus_digest(sources: Sequence[InputFile], *options: object) -> str:
    """Return a hash of the whole corpus and of `options`; it is the same for all shards of one build, and no others.

    Every shard finds the files by itself, and a file that was added between two of them would move all cuts. Times are
    left out, because copies on several machines have different ones.
    """
    digest = hashlib.sha256(repr(options).encode())
    for source in sources:
        digest.update(f"{source.path.absolute()}\0{source.kind}\0{source.size}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


def check_complete(prefixes: Sequence[Path]) -> None:
    """Raise DataError if some of `prefixes` are shards, but not all shards of one name in their order."""
    found = [(path, _NAME.search(path.name)) for path in prefixes]
    shards = [(path, end.start(), Shard(int(end[1]), int(end[2]))) for path, end in found if end]
    for expected, (path, end, shard) in enumerate(shards):
        if len(shards) != len(prefixes) or shard != Shard(expected, len(shards)):
            msg = (
                f"{path} is shard {shard.number} of {shard.count}, in place {expected} of {len(prefixes)} inputs.\n"
                "Merge all shards, in order: give NAME-*-of-*.idx; merge other files afterwards."
            )
            raise DataError(msg)
        first = shards[0][0]
        if path.name[:end] != first.name[: shards[0][1]]:
            msg = f"{first} and {path} are shards of different names.\nMerge those of each name by themselves."
            raise DataError(msg)
