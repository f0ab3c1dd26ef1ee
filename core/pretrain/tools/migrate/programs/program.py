"""Programs that people train with, and the flags of their versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """

    name: str
    title: str
    dialect: Dialect
    flags: Mapping[str, Flag]
    spelled: Mapping[str, Flag]
    refused: frozenset[str] = frozenset()
    prefixes: bool = False
