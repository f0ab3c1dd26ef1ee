"""The newest of some versions that takes all, or most, of what a training states; and the reason in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pretrain.tools.migrate.programs.known import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pretrain.tools.migrate.programs.program import Program

_NAMED = 3  # flags that a reason names


@dataclass(frozen=True, slots=True)
class Choice:
    """A program that was chosen.

    Attributes:
        program: the version.
        why: for the user: "Megatron-LM 23.08 of October 2023, the newest version that takes --data-impl".
        unknown: flags, keys or names that it does not take.
        others: related programs that are as good, of each family the newest first.
    """

    program: Program
    why: str
    unknown: tuple[str, ...] = ()
    others: tuple[Program, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Names that a training states.

    Attributes:
        names: flags or keys.
        called: "flags" or "keys".
        takes: whether a program takes one.
        script: file that starts the training; empty if it is not known.
    """

    names: tuple[str, ...]
    called: str
    takes: Callable[[Program, str], bool]
    script: str = ""

    def missing(self, program: Program) -> tuple[str, ...]:
        """Return the names that a program does not take."""
        return tuple(name for name in self.names if not self.takes(program, name))


def newest_fitting(among: Sequence[Program], wanted: Wanted, hint: str) -> Choice:
    """Choose the first of some programs that takes most; of equal ones the first that the script starts.

    Args:
        among: programs; of each family the newest first.
        wanted: what the training states.
        hint: what --from says; empty for nothing.
    """
    missing = {each.name: wanted.missing(each) for each in among}
    fewest = min(map(len, missing.values()))
    fitting = [each for each in among if len(missing[each.name]) == fewest]
    fitting = [each for each in fitting if wanted.script in version_of(each).scripts] or fitting
    chosen, *others = fitting
    newer = [each for each in among[: among.index(chosen)] if are_related(each, chosen)]
    reason = _reason(wanted, missing[chosen.name], [missing[each.name] for each in newer], is_named=len(among) == 1)
    why = f"{chosen.title}, {asked_for(hint)}{reason}"
    return Choice(chosen, why, missing[chosen.name], tuple(each for each in others if are_related(each, chosen)))


def asked_for(hint: str) -> str:
    """Return the words of a reason that name --from; none if it says nothing."""
    return f"as --from {hint} says, " if hint else ""


def are_related(one: Program, other: Program) -> bool:
    """Say whether a command may be for either: versions of one family, or of both Megatron-DeepSpeeds."""
    same_family = version_of(one).family == version_of(other).family
    return same_family or ("--deepspeed" in one.spelled and "--deepspeed" in other.spelled)


def _reason(wanted: Wanted, missing: Sequence[str], newer: Sequence[Sequence[str]], *, is_named: bool) -> str:
    """Return why a version was chosen, from what it and newer ones do not take."""
    if missing and is_named:
        return f"though it does not take {_listed(missing)}"
    if missing:
        return f"which takes most of the {wanted.called}, but not {_listed(missing)}"
    if is_named or not newer:
        return f"{'' if is_named else 'the newest version, '}which takes all the {wanted.called}"
    lost = list(dict.fromkeys(name for names in newer for name in names))
    if not all(newer):
        return f"the newest version with {wanted.script} that takes {_listed(lost) or f'all the {wanted.called}'}"
    decisive = [name for name in lost if all(name in names for names in newer)]
    return f"the newest version that takes {_listed(decisive or lost)}"


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
