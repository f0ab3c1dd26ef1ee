"""Token files and tokenizer of a recipe: readable from every rank, equal on all, and fast enough."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.data.corpus.recipe_corpus import is_complete
from pretrain.data.token_files.reading import TokenFile, bin_path
from pretrain.data.tokenizers.files import fingerprint_of
from pretrain.doctor.files.read_speed import read_speed
from pretrain.doctor.finding import Finding, Verdict
from pretrain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pretrain.recipe import Recipe

_MOST_SECONDS = 2.0
_SLOW = 50e6
"""bytes/s of a file read in its order; a single hard disk has 100e6 and more."""
_ABSENT = "absent"
_SLOW_SAMPLE = 0.02
"""Seconds for a sample somewhere in the file; a hard disk's seek takes about 0.01."""


def look_at_data(
    recipe: Recipe, doing: Callable[[str], None], *, with_speed: bool, most_seconds: float = _MOST_SECONDS
) -> dict[str, Any]:
    """Return what this rank sees of the recipe's token files and tokenizer, as a value that JSON knows.

    Args:
        recipe: whose files are read.
        doing: told what is read now.
        with_speed: whether the read speed is measured too, of the largest token file.
        most_seconds: that the measurement may take.
    """
    seen: dict[str, Any] = {"host": socket.gethostname(), "files": {}, "speed": None}
    if (path := recipe.data.path) and recipe.data.corpus and not is_complete(path, recipe.tokenizer):
        seen["files"]["token files"] = {"identity": _ABSENT, "shown": f"absent, the run builds {path}"}
        return seen
    for prefix in _prefixes(recipe):
        doing(f"read the token files {prefix}")
        seen["files"][f"token files {prefix}"] = _look(lambda prefix=prefix: _identity(prefix))  # type: ignore[misc]
    if recipe.tokenizer.type != "bytes":
        doing("read the tokenizer")
        seen["files"]["tokenizer"] = _look(lambda: _tokenizer_identity(recipe))
    readable = [prefix for prefix in _prefixes(recipe) if bin_path(prefix).is_file()]
    if with_speed and readable:
        largest = max((bin_path(prefix) for prefix in readable), key=lambda path: path.stat().st_size)
        doing(f"measure the speed of reading {largest}")
        seen["speed"] = read_speed(largest, sample_bytes=4 * recipe.model.seq_length, most_seconds=most_seconds)
    return seen


def judge_data(seen: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Return the findings about what the ranks see: a missing or another file is named with rank and host.

    Args:
        seen: what `look_at_data` returned, by rank.
    """
    files = dict.fromkeys(name for each in seen.values() for name in each["files"])
    hosts = {rank: each["host"] for rank, each in seen.items()}
    found = [
        finding
        for name in files
        for finding in _judge_file(
            name, {rank: each["files"][name] for rank, each in seen.items() if name in each["files"]}, hosts
        )
    ]
    absent = [rank for rank, each in seen.items() if "token files" in each["files"]]
    if absent and len(absent) < len(seen):
        text = f"absent on {_places(absent, hosts)}, but there on the other ranks: they would not be built"
        found.append(_wrong("data", text, "put the folder on a file system that all nodes share", absent))
    return found + _judge_speed({rank: each["speed"] for rank, each in seen.items() if each["speed"]}, hosts)


def _prefixes(recipe: Recipe) -> list[str]:
    return [recipe.data.path] if recipe.data.path else [part.path for part in recipe.data.blend or ()]


def _look(identity: Callable[[], dict[str, str]]) -> dict[str, str]:
    try:
        return identity()
    except (DataError, OSError) as error:
        text, _, remedy = str(error).partition("\n")
        return {"error": text.rstrip("."), "remedy": remedy}


def _identity(prefix: str) -> dict[str, str]:
    tokens = TokenFile.open(prefix)
    return {"identity": tokens.identity(), "shown": f"{tokens.tokens.size:,} tokens"}


def _tokenizer_identity(recipe: Recipe) -> dict[str, str]:
    section = recipe.tokenizer
    files = [Path(name) for name in (section.vocab_file, section.merge_file, section.file) if name]
    return {"identity": fingerprint_of(section.type, *files), "shown": ", ".join(map(str, files))}


def _judge_file(name: str, seen: Mapping[int, Mapping[str, str]], hosts: Mapping[int, str]) -> list[Finding]:
    errors: dict[tuple[str, str], list[int]] = {}
    for rank, each in seen.items():
        if "error" in each:
            errors.setdefault((each["error"], each["remedy"]), []).append(rank)
    found = [
        _wrong("data", f"{text} on {_places(ranks, hosts)}", remedy, ranks) for (text, remedy), ranks in errors.items()
    ]
    good = {rank: each for rank, each in seen.items() if "error" not in each}
    return [*found, *_judge_equal(name, good, hosts, among=len(seen))] if good else found


def _judge_equal(
    name: str, good: Mapping[int, Mapping[str, str]], hosts: Mapping[int, str], among: int
) -> list[Finding]:
    usual = Counter(each["identity"] for each in good.values()).most_common(1)[0][0]
    shown = next(each["shown"] for each in good.values() if each["identity"] == usual)
    others = [rank for rank, each in good.items() if each["identity"] != usual]
    if not others:
        everywhere = f", equal on {among} ranks" if len(good) == among > 1 and usual != _ABSENT else ""
        return [Finding(check="data", verdict=Verdict.OK, text=f"{name}: {shown}{everywhere}")]
    text = f"{name}: other content on {_places(others, hosts)} ({good[others[0]]['shown']}) than elsewhere ({shown})"
    return [_wrong("data", text, "copy the files of one node to all, or put them on a shared file system", others)]


def _judge_speed(speeds: Mapping[int, Mapping[str, float]], hosts: Mapping[int, str]) -> list[Finding]:
    if not speeds:
        return []
    slowest = min(speeds, key=lambda rank: speeds[rank]["rate"])
    rate, sample = speeds[slowest]["rate"], max(each["sample"] for each in speeds.values())
    where = f" (slowest of {len(speeds)} nodes: {hosts[slowest]})" if len(speeds) > 1 else ""
    text = f"token files are read at {rate / 1e6:,.0f} MB/s{where}, a sample anywhere in {1e3 * sample:.2f} ms"
    if rate >= _SLOW and sample <= _SLOW_SAMPLE:
        return [Finding(check="data", verdict=Verdict.OK, text=text)]
    remedy = "copy them to a faster disk; or let more workers read (data.num_workers)"
    return [Finding(check="data", verdict=Verdict.LOOK, text=text, remedy=remedy)]


def _places(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """Return ranks with their hosts, the first three."""
    ordered = sorted(ranks)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(f"rank {rank} (host {hosts[rank]})" for rank in ordered[:3]) + more


def _wrong(check: str, text: str, remedy: str, ranks: Iterable[int]) -> Finding:
    return Finding(check=check, verdict=Verdict.WRONG, text=text, remedy=remedy, ranks=tuple(sorted(ranks)))
