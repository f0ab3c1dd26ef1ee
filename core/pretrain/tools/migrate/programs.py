"""Programs that people train with: their flags, and the versions whose defaults differ."""

from __future__ import annotations

import json
from collections import ChainMap
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from pretrain.errors import MigrateError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Kind = Literal["int", "float", "str", "bool", "switch", "object", "pattern"]
Dialect = Literal["megatron", "neox"]


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of a program, as its parser defines it.

    Attributes:
        name: argparse's dest, or the key of a YAML file with underscores.
        spellings: "--num-layers", the usual one first; "num-layers" for a key of a YAML file.
        kind: type of one value; "switch" takes none on a command line; "object" is a mapping or a list of a YAML file;
            "pattern" is an int or the text of a list's expression, "([0]*3+[1])*6".
        default: value without it.
        given: value of a switch that is given: True, False, or a constant.
        nargs: as argparse has it: None for one value, "?", "*", "+", or a number.
        choices: allowed values; empty for any.
    """

    name: str
    spellings: tuple[str, ...]
    kind: Kind
    default: Any = None
    given: Any = None
    nargs: int | str | None = None
    choices: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """One version of a program.

    Attributes:
        name: as --from takes it, "megatron-lm-2023.07".
        title: for people, "Megatron-LM of July 2023".
        dialect: whose meanings its settings have.
        flags: by name; several flags may set one name ("--no-x" and "--x"), then `spelled` has them all.
        spelled: by spelling.
        refused: names of flags that the parser accepts and the program then ends for, as no longer valid.
        prefixes: whether the parser takes the beginning of a flag for the flag.
        elsewhere: flags of other versions, and of programs with the same dialect, by spelling.
    """

    name: str
    title: str
    dialect: Dialect
    flags: Mapping[str, Flag]
    spelled: Mapping[str, Flag]
    refused: frozenset[str] = frozenset()
    prefixes: bool = False
    elsewhere: Mapping[str, Flag] = field(default_factory=dict)


class Version(NamedTuple):
    """A version of a program; those that follow it with the same defaults are one with it.

    Attributes:
        name: of the newest of them, as --from takes it.
        title: for people.
        family: the program; --from takes it too.
        dialect: of its settings.
        commit: of the program's repository.
        scripts: files that start its training.
        refused: names of flags that its parser accepts and its validate_args then ends the program for.
        prefixes: whether its parser takes the beginning of a flag for the flag.
        also: the older ones, as --from takes them.
        base: version whose flags it has beside its own.
    """

    name: str
    title: str
    family: str
    dialect: Dialect
    commit: str
    scripts: tuple[str, ...]
    refused: frozenset[str] = frozenset()
    prefixes: bool = False
    also: tuple[str, ...] = ()
    base: str = ""


_LM, _MICROSOFT, _BIGSCIENCE = "megatron-lm", "megatron-deepspeed", "bigscience-megatron-deepspeed"
_GPT = ("pretrain_gpt.py", "pretrain_gpt_core.py")
_REFUSED_SINCE_2 = frozenset(("batch_size", "warmup", "model_parallel_size"))
_REFUSED_SINCE_2023 = _REFUSED_SINCE_2 | {"checkpoint_activations"}


def _megatron(version: str, title: str, commit: str, also: str = "", family: str = _LM, base: str = "") -> Version:
    """Return a version that pretrain_gpt.py starts; both Megatron-DeepSpeeds keep --checkpoint-activations."""
    keeps = family in {_MICROSOFT, _BIGSCIENCE} or version in {"2.0", "2.5", "2.6", "2022.03"}
    refused = _REFUSED_SINCE_2 if keeps else _REFUSED_SINCE_2023
    older = tuple(f"{family}-{name}" for name in also.split())
    return Version(f"{family}-{version}", title, family, "megatron", commit, _GPT, refused, also=older, base=base)


def _gpt2(version: str, title: str, commit: str, *, prefixes: bool = False) -> Version:
    return Version(f"{_LM}-{version}", title, _LM, "megatron", commit, ("pretrain_gpt2.py",), prefixes=prefixes)


def _neox(version: str, title: str, commit: str, also: str = "") -> Version:
    older = tuple(f"gpt-neox-{name}" for name in also.split())
    return Version(f"gpt-neox-{version}", title, "gpt-neox", "neox", commit, ("deepy.py", "train.py"), also=older)


VERSIONS = (
    _gpt2("1.0", "Megatron-LM v1.0 of April 2020", "03d2880923ffeec494cb0ef0cfc3d7234b2bacc7", prefixes=True),
    _gpt2("2020.08", "Megatron-LM of August 2020", "9edfdaec7bc75da48326113283b4af1693df1abb"),
    _megatron("2.0", "Megatron-LM v2.0 of January 2021", "be473a5bd22e9adefb076d65c4a2950b05536a6f"),
    _megatron("2.5", "Megatron-LM v2.5 of August 2021", "e269e200649555069454bf78335466f9658b2044"),
    _megatron("2.6", "Megatron-LM v2.6 of August 2021", "3860e995269df61d234ed910d4756e104e1ab844"),
    _megatron("2022.03", "Megatron-LM of March 2022", "c88bc979a24a24d8204fb731652e51a27adb7562"),
    _megatron("23.06", "Megatron-LM 23.04 to 23.06 of June 2023", "4f8e9ac412eff9cabae31495b9f5f3f02fe5a9d4", "23.04"),
    _megatron("2023.07", "Megatron-LM of July 2023", "de72f85d1e587b9ed8fdda30e66a40a9097717f5"),
    _megatron("23.08", "Megatron-LM 23.08 of October 2023", "375395c187ff64b8d56a1cd40572bc779864b1bd"),
    _megatron(
        "core-0.5",
        "Megatron-LM core_v0.4 to v0.5 of February 2024",
        "0acc240ebd2877b4ca5f5b471ea7554bbc62c1b9",
        "core-0.4",
    ),
    _megatron(
        "core-0.7", "Megatron-LM core_v0.6 to v0.7 of May 2024", "a645f89671be698612170539f2089dc15db66a80", "core-0.6"
    ),
    _megatron(
        "core-0.10",
        "Megatron-LM core_v0.8 to v0.10 of February 2025",
        "7ee599a25ca15f042c1087176b73ebddb0566d02",
        "core-0.8 core-0.9",
    ),
    _megatron(
        "core-0.15",
        "Megatron-LM core_v0.11 to v0.15 of February 2026",
        "309ffca6a40553362d44fd17efc56b772fa1aa44",
        "core-0.11 core-0.12 core-0.13 core-0.14",
    ),
    _megatron(
        "2026.08",
        "Megatron-LM core_v0.16 and later, of August 2026",
        "d98e8a64ddf34856e74b24714e3bedb2f5a39553",
        "core-0.16 core-0.17 core-0.18 core-0.19",
    ),
    _megatron(
        "2022",
        "Megatron-DeepSpeed before its rebase of 2023",
        "9446eaac022a377882db4b120a925df5d31db353",
        family=_MICROSOFT,
    ),
    _megatron(
        "2023.11", "Megatron-DeepSpeed of November 2023", "b7529f3505a6248e0ef58af9be80eaa4da4af0ee", family=_MICROSOFT
    ),
    _megatron(
        "2025.07", "Megatron-DeepSpeed of July 2025", "4efb479d5317ce9b86096b9d8e3e8030b0b5263b", family=_MICROSOFT
    ),
    _megatron(
        "2023.12",
        "BigScience's Megatron-DeepSpeed of December 2023",
        "8387ae17c4704f6579f88a84500b535d19d7fbbf",
        family=_BIGSCIENCE,
    ),
    _megatron(
        "2026.08",
        "MindSpeed-LLM of August 2026",
        "c77308a14bfcb1aa7ca61da9c1aa24a893cb1b91",
        family="mindspeed-llm",
        base=f"{_LM}-core-0.15",
    ),
    # The tag v2.0 itself has a file that is not Python; this is the commit that corrects it.
    _neox("2.0", "GPT-NeoX 2.0 of March 2023", "6534f19ec65007d58b6bdc8155fea6fde3749444"),
    _neox("2023.05", "GPT-NeoX of May 2023", "649c30971d45326f140516ee7e333cdcef01062c"),
    _neox("2023.10", "GPT-NeoX of October 2023", "f574f22bbfaa65a81a668e96cbb9a71283460db6"),
    _neox(
        "2024.08", "GPT-NeoX of February to August 2024", "c7863673e3c08b5886cae36cf096a0fb5789dd0e", "2024.02 2024.04"
    ),
    _neox(
        "2026.05",
        "GPT-NeoX of September 2024 to May 2026",
        "ea7aefd8f8e183256992d9fede4d7c71a46d67a5",
        "2024.09 2025.04",
    ),
)
"""Of each family the oldest first; the families in the order in which a command is taken for one."""

FAMILIES = tuple(dict.fromkeys(version.family for version in VERSIONS))
_VERSIONS = {version.name: version for version in VERSIONS}
_NAMES = _VERSIONS | {older: version for version in VERSIONS for older in version.also}
_ORDER = list(_VERSIONS)


class FlagRow(NamedTuple):
    """A flag, and the versions in which it is so.

    Attributes:
        flag: the definition.
        versions: their names.
    """

    flag: Flag
    versions: tuple[str, ...]


@cache
def programs() -> Mapping[str, Program]:
    """Return all programs by name, as VERSIONS orders them."""
    return MappingProxyType({version.name: _program(version) for version in VERSIONS})


def program(name: str) -> Program:
    """Return a program.

    Args:
        name: of a version, or of a family for its newest version.
    """
    if name in FAMILIES:
        return family_of(name)[-1]
    if name not in _NAMES:
        near = did_you_mean(name, (*FAMILIES, *_NAMES))
        named = f"Programs are {', '.join(FAMILIES)}, each alone or with a version:"
        msg = f"--from {name}: no such program.{near}\n{named}\n{', '.join(_NAMES)}."
        raise MigrateError(msg)
    return programs()[_NAMES[name].name]


def family_of(name: str) -> tuple[Program, ...]:
    """Return the versions of a family, the oldest first.

    Args:
        name: of the family, or of one of its versions.
    """
    family = _NAMES[name].family if name in _NAMES else name
    return tuple(programs()[version.name] for version in VERSIONS if version.family == family)


def version_of(program: Program) -> Version:
    """Return the version that a program is."""
    return _VERSIONS[program.name]


def _program(version: Version) -> Program:
    by_version = _flags_by_version(version.dialect)
    flags = by_version[version.name]
    if version.base:
        own = {flag.name for flag in flags}
        flags = [*flags, *(flag for flag in by_version[version.base] if flag.name not in own)]
    return Program(
        name=version.name,
        title=version.title,
        dialect=version.dialect,
        flags=_first(flags, lambda flag: (flag.name,)),
        spelled=_first(flags, lambda flag: flag.spellings),
        refused=version.refused,
        prefixes=version.prefixes,
        elsewhere=ChainMap(*(_spelled(dialect, name) for dialect, name in _nearest(version))),
    )


def _nearest(version: Version) -> Iterator[tuple[Dialect, str]]:
    """Yield the other versions of a family, the newest first, and then those of the other families."""
    alike = [other for other in VERSIONS[::-1] if other.dialect == version.dialect]
    for other in sorted(alike, key=lambda other: other.family != version.family):
        yield other.dialect, other.name


@cache
def _spelled(dialect: Dialect, name: str) -> dict[str, Flag]:
    return _first(_flags_by_version(dialect)[name], lambda flag: flag.spellings)


def _first(flags: Iterable[Flag], keys: Any) -> dict[str, Flag]:
    first: dict[str, Flag] = {}
    for flag in flags:
        for key in keys(flag):
            first.setdefault(key, flag)
    return first


@cache
def _flags_by_version(dialect: Dialect) -> Mapping[str, list[Flag]]:
    flags: dict[str, list[Flag]] = {version.name: [] for version in VERSIONS}
    for row in read_rows(dialect):
        for name in row.versions:
            flags[name].append(row.flag)
    return flags


def file_of(dialect: Dialect) -> str:
    """Return the name of a dialect's file in this package."""
    return f"{dialect}_flags.tsv"


def read_rows(dialect: Dialect) -> Iterator[FlagRow]:
    """Yield the rows of a dialect's file; flags of one name follow each other as their parser defines them."""
    text = resources.files("pretrain.tools.migrate").joinpath(file_of(dialect)).read_text(encoding="utf-8")
    return map(read_row, text.splitlines()[1:])


def read_row(line: str) -> FlagRow:
    """Read a line."""
    name, spellings, kind, *values, versions = line.split("\t")
    nargs, given, choices, default = (json.loads(value) if value else None for value in values)
    flag = Flag(name, tuple(spellings.split(" ")), cast("Kind", kind), default, given, nargs, tuple(choices or ()))
    return FlagRow(flag, tuple(_names(versions)))


def _names(runs: str) -> Iterator[str]:
    """Yield the names that "a..c e" stands for."""
    for run in runs.split(" "):
        first, _, last = run.partition("..")
        start = _ORDER.index(first)
        yield from _ORDER[start : _ORDER.index(last or first, start) + 1]
