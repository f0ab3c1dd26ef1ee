"""Programs whose flags are known, by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from pretrain.errors import MigrateError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


Kind = Literal["int", "float", "str", "bool", "switch", "object", "pattern"]
Dialect = Literal["megatron", "neox"]

_GPT2 = ("pretrain_gpt2.py",)
_GPT = ("pretrain_gpt.py", "pretrain_gpt_core.py")
_MICROSOFT = "megatron-deepspeed"
_BIGSCIENCE = "bigscience-megatron-deepspeed"

_REFUSED_SINCE_2 = frozenset(("batch_size", "warmup", "model_parallel_size"))
_REFUSED_SINCE_2023 = _REFUSED_SINCE_2 | {"checkpoint_activations"}


class Version(NamedTuple):
    """A version of a program.

    Attributes:
        name: as --from takes it.
        title: for people.
        family: the program; --from takes it too.
        dialect: of its settings.
        commit: of the program's repository.
        scripts: files that start its training.
        refused: names of flags that its parser accepts and its validate_args then ends the program for.
        prefixes: whether its parser takes the beginning of a flag for the flag.
    """

    name: str
    title: str
    family: str
    dialect: Dialect
    commit: str
    scripts: tuple[str, ...]
    refused: frozenset[str] = frozenset()
    prefixes: bool = False


def _megatron(version: str, title: str, commit: str, refused: frozenset[str]) -> Version:
    """Return a version of Megatron-LM that pretrain_gpt.py starts."""
    return Version(f"megatron-lm-{version}", f"Megatron-LM {title}", "megatron-lm", "megatron", commit, _GPT, refused)


def _core(version: str, tag: str, month: str, commit: str) -> Version:
    """Return a version of Megatron-LM that has the number of a release of megatron-core."""
    return _megatron(f"core-{version}", f"core_v{tag} of {month}", commit, _REFUSED_SINCE_2023)


def _deepspeed(family: str, version: str, title: str, commit: str) -> Version:
    """Return a version of one of the two Megatron-DeepSpeeds; both keep --checkpoint-activations."""
    return Version(f"{family}-{version}", title, family, "megatron", commit, _GPT, _REFUSED_SINCE_2)


def _neox(version: str, title: str, commit: str) -> Version:
    """Return a version of GPT-NeoX."""
    return Version(f"gpt-neox-{version}", title, "gpt-neox", "neox", commit, ("deepy.py", "train.py"))


VERSIONS = (
    Version(
        "megatron-lm-1.0",
        "Megatron-LM v1.0 of April 2020",
        "megatron-lm",
        "megatron",
        "03d2880923ffeec494cb0ef0cfc3d7234b2bacc7",
        _GPT2,
        prefixes=True,
    ),
    Version(
        "megatron-lm-2020.08",
        "Megatron-LM of August 2020",
        "megatron-lm",
        "megatron",
        "9edfdaec7bc75da48326113283b4af1693df1abb",
        _GPT2,
    ),
    _megatron("2.0", "v2.0 of January 2021", "be473a5bd22e9adefb076d65c4a2950b05536a6f", _REFUSED_SINCE_2),
    _megatron("2.5", "v2.5 of August 2021", "e269e200649555069454bf78335466f9658b2044", _REFUSED_SINCE_2),
    _megatron("2.6", "v2.6 of August 2021", "3860e995269df61d234ed910d4756e104e1ab844", _REFUSED_SINCE_2),
    _megatron("2022.03", "of March 2022", "c88bc979a24a24d8204fb731652e51a27adb7562", _REFUSED_SINCE_2),
    _megatron("23.04", "23.04 of May 2023", "2360d732a399dd818d40cbe32828f65b260dee11", _REFUSED_SINCE_2023),
    _megatron("23.06", "23.06 of June 2023", "4f8e9ac412eff9cabae31495b9f5f3f02fe5a9d4", _REFUSED_SINCE_2023),
    _megatron("2023.07", "of July 2023", "de72f85d1e587b9ed8fdda30e66a40a9097717f5", _REFUSED_SINCE_2023),
    _megatron("23.08", "23.08 of October 2023", "375395c187ff64b8d56a1cd40572bc779864b1bd", _REFUSED_SINCE_2023),
    _core("0.4", "0.4.0", "December 2023", "38879f8b3f0edc4ed4f50ac2f3271010b12c549f"),
    _core("0.5", "0.5.0", "February 2024", "0acc240ebd2877b4ca5f5b471ea7554bbc62c1b9"),
    _core("0.6", "0.6.0", "April 2024", "cac60ce4c8203e2ed18912be63d4dd577b46830d"),
    _core("0.7", "0.7.0", "May 2024", "a645f89671be698612170539f2089dc15db66a80"),
    _core("0.8", "0.8.0", "August 2024", "baf94af3c667248865f23df73b9fb8e2395e6fd0"),
    _core("0.9", "0.9.0", "October 2024", "1afee592e85ac7994887eb5f4ef3998f76384333"),
    _core("0.10", "0.10.0", "February 2025", "7ee599a25ca15f042c1087176b73ebddb0566d02"),
    _core("0.11", "0.11.0", "March 2025", "aa6207e2da6bca789375f591c9124aa408d2509a"),
    _core("0.12", "0.12.0", "May 2025", "d580efc68a9f0dbf1945f834f6f6200cd01d3343"),
    _core("0.13", "0.13.0", "July 2025", "c550cf6c41c31cd3ec72e05c25ea0c979f2b6631"),
    _core("0.14", "0.14.0", "October 2025", "23e00ed0963c35382dfe8a5a94fb3cda4d21e133"),
    _core("0.15", "0.15.3", "February 2026", "309ffca6a40553362d44fd17efc56b772fa1aa44"),
    _core("0.16", "0.16.1", "March 2026", "55ac7082517c3878ae653c07c09c534b8aed49f6"),
    _core("0.17", "0.17.1", "May 2026", "266f1c97dca477ca8b92c16087506da2000b0b84"),
    _core("0.18", "0.18.2", "July 2026", "571370c829ca768fe37244f4e2e7f28d8accc4ab"),
    _core("0.19", "0.19.0", "August 2026", "5be9626709af2722333bf54797c954c09edeada3"),
    _megatron("2026.08", "of August 2026", "d98e8a64ddf34856e74b24714e3bedb2f5a39553", _REFUSED_SINCE_2023),
    _deepspeed(
        _MICROSOFT, "2022", "Megatron-DeepSpeed before its rebase of 2023", "9446eaac022a377882db4b120a925df5d31db353"
    ),
    _deepspeed(
        _MICROSOFT, "2023.11", "Megatron-DeepSpeed of November 2023", "b7529f3505a6248e0ef58af9be80eaa4da4af0ee"
    ),
    _deepspeed(_MICROSOFT, "2025.07", "Megatron-DeepSpeed of July 2025", "4efb479d5317ce9b86096b9d8e3e8030b0b5263b"),
    _deepspeed(
        _BIGSCIENCE,
        "2023.12",
        "BigScience's Megatron-DeepSpeed of December 2023",
        "8387ae17c4704f6579f88a84500b535d19d7fbbf",
    ),
    # The tag v2.0 itself has a file that is not Python; this is the commit that corrects it.
    _neox("2.0", "GPT-NeoX 2.0 of March 2023", "6534f19ec65007d58b6bdc8155fea6fde3749444"),
    _neox("2023.05", "GPT-NeoX of May 2023", "649c30971d45326f140516ee7e333cdcef01062c"),
    _neox("2023.10", "GPT-NeoX of October 2023", "f574f22bbfaa65a81a668e96cbb9a71283460db6"),
    _neox("2024.02", "GPT-NeoX of February 2024", "966380297a1ae7984f06249d4464537a59a508e5"),
    _neox("2024.04", "GPT-NeoX of April 2024", "838d5bfc3c5b0c03c9037c5fe72e4fa8ebf00c6a"),
    _neox("2024.08", "GPT-NeoX of August 2024", "c7863673e3c08b5886cae36cf096a0fb5789dd0e"),
    _neox("2024.09", "GPT-NeoX of September 2024", "b0b490dea75cca93d7c89f0e5b18dadb006704dd"),
    _neox("2025.04", "GPT-NeoX of April 2025", "facb280d99dd9ad26aee81f44a29a75702d6e5a5"),
    _neox("2026.05", "GPT-NeoX of May 2026", "ea7aefd8f8e183256992d9fede4d7c71a46d67a5"),
)
"""Of each family the oldest first; the families in the order in which a command is taken for one."""

FAMILIES = tuple(dict.fromkeys(version.family for version in VERSIONS))

_VERSIONS = {version.name: version for version in VERSIONS}


@cache
def programs() -> Mapping[str, Program]:
    """Return all programs by name, as VERSIONS orders them."""
    return MappingProxyType({version.name: _program(version) for version in VERSIONS})


def program(name: str) -> Program:
    """Return a program.

    Args:
        name: of a version, or of a family for its newest version.

    Raises:
        MigrateError: nothing has that name.
    """
    if name in FAMILIES:
        return family_of(name)[-1]
    if name not in _VERSIONS:
        raise MigrateError(_unknown(name))
    return programs()[name]


def family_of(name: str) -> tuple[Program, ...]:
    """Return the versions of a family, the oldest first.

    Args:
        name: of the family, or of one of its versions.
    """
    family = _VERSIONS[name].family if name in _VERSIONS else name
    return tuple(programs()[version.name] for version in VERSIONS if version.family == family)


def version_of(program: Program) -> Version:
    """Return the version that a program is."""
    return _VERSIONS[program.name]


def _program(version: Version) -> Program:
    flags = _flags_by_version(version.dialect).get(version.name, [])
    return Program(
        name=version.name,
        title=version.title,
        dialect=version.dialect,
        flags=_first_by_name(flags),
        spelled={spelling: flag for flag in flags for spelling in flag.spellings},
        refused=version.refused,
        prefixes=version.prefixes,
    )


@cache
def _flags_by_version(dialect: Dialect) -> Mapping[str, list[Flag]]:
    flags: dict[str, list[Flag]] = {}
    for row in read_rows(dialect):
        for name in row.versions:
            flags.setdefault(name, []).append(row.flag)
    return flags


def _first_by_name(flags: Iterable[Flag]) -> dict[str, Flag]:
    first: dict[str, Flag] = {}
    for flag in flags:
        first.setdefault(flag.name, flag)
    return first


def _unknown(name: str) -> str:
    lines = (
        f"--from {name}: no such program.{did_you_mean(name, (*FAMILIES, *_VERSIONS))}",
        f"Programs are {', '.join(FAMILIES)}, each alone or with a version:",
        f"{', '.join(_VERSIONS)}.",
    )
    return "\n".join(lines)


COLUMNS = ("name", "spellings", "kind", "nargs", "given", "choices", "default", "versions")
_ORDER = [version.name for version in VERSIONS]


class Row(NamedTuple):
    """A flag, and the versions whose parsers define it so.

    Attributes:
        flag: the definition.
        versions: their names.
    """

    flag: Flag
    versions: tuple[str, ...]


def file_of(dialect: Dialect) -> str:
    """Return the name of a dialect's file in this package."""
    return f"{dialect}_flags.tsv"


def read_rows(dialect: Dialect) -> Iterator[Row]:
    """Yield the rows of a dialect's file; flags of one name follow each other as their parser defines them."""
    text = resources.files("pretrain.tools.migrate").joinpath(file_of(dialect)).read_text(encoding="utf-8")
    return map(read_row, text.splitlines()[1:])


def read_row(line: str) -> Row:
    """Read a line."""
    cells = dict(zip(COLUMNS, line.split("\t"), strict=True))
    flag = Flag(
        name=cells["name"],
        spellings=tuple(cells["spellings"].split(" ")),
        kind=cast("Kind", cells["kind"]),
        default=_value(cells, "default"),
        given=_value(cells, "given"),
        nargs=_value(cells, "nargs"),
        choices=tuple(_value(cells, "choices") or ()),
    )
    return Row(flag, tuple(_names(cells["versions"])))


def written_row(row: Row) -> str:
    """Write a line, without its end."""
    flag = row.flag
    values = (flag.nargs, flag.given, list(flag.choices) or None, flag.default)
    return "\t".join((flag.name, " ".join(flag.spellings), flag.kind, *map(_written, values), _runs(row.versions)))


def _value(cells: Mapping[str, str], column: str) -> Any:
    return json.loads(cells[column]) if cells[column] else None


def _written(value: Any) -> str:
    return "" if value is None else json.dumps(value)


def _names(runs: str) -> Iterator[str]:
    """Yield the names that "a..c e" stands for."""
    for run in runs.split(" "):
        first, _, last = run.partition("..")
        start = _ORDER.index(first)
        yield from _ORDER[start : _ORDER.index(last or first, start) + 1]


def _runs(names: tuple[str, ...]) -> str:
    """Write names as runs of the order of all versions: "a..c e"."""
    runs: list[list[int]] = []
    for place in sorted(map(_ORDER.index, names)):
        if runs and runs[-1][-1] == place - 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return " ".join(_ORDER[run[0]] + (f"..{_ORDER[run[-1]]}" if len(run) > 1 else "") for run in runs)


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
    """

    name: str
    title: str
    dialect: Dialect
    flags: Mapping[str, Flag]
    spelled: Mapping[str, Flag]
    refused: frozenset[str] = frozenset()
    prefixes: bool = False
