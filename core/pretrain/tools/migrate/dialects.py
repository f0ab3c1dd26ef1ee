"""The dialects: what their settings mean, and the functions that work out keys of several."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried
from pretrain.tools.migrate.meanings.megatron.meanings import meaning_of as of_megatron
from pretrain.tools.migrate.meanings.neox.meanings import meaning_of as of_neox
from pretrain.tools.migrate.values.megatron.deepspeed import deepspeed_file
from pretrain.tools.migrate.values.megatron.functions import FUNCTIONS as OF_MEGATRON
from pretrain.tools.migrate.values.megatron.functions import READ_BY_FUNCTIONS
from pretrain.tools.migrate.values.neox.functions import FUNCTIONS as OF_NEOX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.migrate.meanings.meaning import Meaning
    from pretrain.tools.migrate.programs.program import Program
    from pretrain.tools.migrate.translation import Overlay
    from pretrain.tools.migrate.values.worked import Function


@dataclass(frozen=True, slots=True)
class Dialect:
    """A dialect.

    Attributes:
        meaning: of a setting by its name; None for an unknown one.
        functions: by key of the recipe.
        overlay: what a DeepSpeed file states, over those.
        read: names of settings that the functions look at.
    """

    meaning: Callable[[str], Meaning | None]
    functions: Mapping[str, Function]
    overlay: Overlay
    read: frozenset[str] = frozenset()

    def needs(self, name: str) -> bool:
        """Say whether a recipe cannot be written without a setting's value."""
        return name in self.read or isinstance(self.meaning(name), Carried)


def dialect_of(program: Program) -> Dialect:
    """Return the dialect of a program."""
    if program.dialect == "neox":
        return Dialect(of_neox, OF_NEOX, lambda _settings, _keys: ({}, []))
    return Dialect(
        lambda name: of_megatron(name, program.name), OF_MEGATRON, deepspeed_file.values_of_file, READ_BY_FUNCTIONS
    )
