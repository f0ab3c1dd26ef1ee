"""Cutting a corpus into consecutive parts of about one size, for many processes that know nothing of each other."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pretrain.data.corpus.sources.inputs import Source

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
            DataError: it is something else.
        """
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", given, re.ASCII)
        number, count = (int(part) for part in found.groups()) if found else (0, 0)
        if not number < count <= 99_999:
            msg = f"--shard is {given}; it is I/N with I from 0 to N - 1, as in 0/16, and N below 100,000."
            raise DataError(msg)
        return cls(number, count)

    @property
    def suffix(self) -> str:
        """What the name of its files ends in; sorted by name the shards are in order."""
        return f"-{self.number:05}-of-{self.count:05}"

    def of(self, sources: Sequence[Source]) -> list[Source]:
        """Return its part of the corpus; the parts of all shards, one after the other, are the corpus.

        A plain file of lines is cut between two lines; any other file is read whole by the shard its first byte
        falls to.
        """
        total = sum(source.size for source in sources)
        return list(self._parts(sources, *(total * part // self.count for part in (self.number, self.number + 1))))

    def _parts(self, sources: Sequence[Source], begin: int, end: int) -> Iterator[Source]:
        last = self.number + 1 == self.count
        before = 0
        for source in sources:
            low, high = max(begin - before, 0), min(end - before, source.size)
            if source.kind == "lines" and not source.packed:
                if low < high:
                    yield replace(source, begin=low, end=high)
            elif begin <= before < end or (last and before == end):
                yield source
            before += source.size


def corpus_digest(sources: Sequence[Source], *options: object) -> str:
    """Return what all shards of one build have in common, and no others: a hash of the uncut corpus and of `options`.

    Every shard finds the files by itself, and a file that came in between two of them would move all cuts. Times are
    left out: copies on several machines have their own.
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
                "Shards are merged all of them, in order: give NAME-*-of-*.idx; other files are merged afterwards."
            )
            raise DataError(msg)
        first = shards[0][0]
        if path.name[:end] != first.name[: shards[0][1]]:
            msg = f"{first} and {path} are shards of different names.\nMerge those of each name by themselves."
            raise DataError(msg)
