"""Choice of the program and version that a command, the keys of files, or a log are of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.arguments.fitting import Choice, Wanted, are_related, asked_for, newest_fitting
from pretrain.tools.migrate.arguments.option_words import matching_flags
from pretrain.tools.migrate.programs.known import family_of, program
from pretrain.tools.migrate.programs.versions import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pretrain.tools.migrate.programs.program import Dialect, Program
    from pretrain.tools.migrate.setting import Word


def recognize(words: Sequence[Word]) -> list[Program]:
    """Return the programs that take all flags of a command; of each family the newest first."""
    wanted = _flags_of(words)
    return [each for each in _of_dialect("megatron") if not wanted.missing(each)]


def choose(words: Sequence[Word], hint: str = "", script: str = "") -> Choice:
    """Choose the program that a command is for: the newest version that takes all its flags, or else most.

    Args:
        words: arguments of the program.
        hint: a program's name or a family, as --from has it; empty for none.
        script: file name of the program that is started, "pretrain_gpt2.py"; empty if it is not known.

    Raises:
        MigrateError: the hint names nothing, or a program with other settings.
    """
    wanted = _flags_of(words, script)
    among = _hinted("megatron", hint) or _with_deepspeed(wanted.names) or _of_dialect("megatron")
    return newest_fitting(among, wanted, hint)


def choose_for_keys(keys: Iterable[str], hint: str = "") -> Choice:
    """Choose the version of GPT-NeoX that files with some keys are for.

    Args:
        keys: of the files, with dashes or underscores.
        hint: a program's name or a family, as --from has it; empty for none.

    Raises:
        MigrateError: the hint names nothing, or a program with other settings.
    """
    names = tuple(dict.fromkeys(key.replace("-", "_") for key in keys))
    wanted = Wanted(names, "keys", lambda each, name: name in each.flags)
    return newest_fitting(_hinted("neox", hint) or _of_dialect("neox"), wanted, hint)


def choose_for_log(names: Iterable[str], hint: str = "") -> Choice:
    """Choose the program that a log of all arguments is of: one that has all flags in it, and fewest others.

    Such a log also has names that are flags of no version, "world_size".

    Args:
        names: of the arguments, with underscores.
        hint: a program's name or a family, as --from has it; empty for none.

    Raises:
        MigrateError: the hint names nothing, or a program with other settings.
    """
    stated = frozenset(names)
    programs = _of_dialect("megatron")
    flags = {name for each in programs for name in each.flags if name in stated}
    among = _hinted("megatron", hint) or programs

    def distance(each: Program) -> tuple[int, int]:
        return len(flags - each.flags.keys()), len(each.flags.keys() - each.refused - stated)

    chosen = min(among, key=distance)
    why = f"{chosen.title}, {asked_for(hint)}whose flags are nearest to the names in the log"
    return Choice(chosen, why, tuple(sorted(stated - chosen.flags.keys())))


def others(words: Sequence[Word], program: Program) -> tuple[Program, ...]:
    """Return the programs related to one that take all flags of a command too; of each family the newest first."""
    found = recognize(words)
    return tuple(each for each in found if each is not program and are_related(each, program))


def differing_defaults(
    program: Program, others: Iterable[Program], stated: Iterable[str]
) -> dict[str, list[tuple[Program, Any]]]:
    """Return other programs' defaults of settings that are not stated, by name, where they differ.

    Args:
        program: that was chosen.
        others: programs that it might be too.
        stated: names whose defaults do not matter.
    """
    found: dict[str, list[tuple[Program, Any]]] = {}
    names = program.flags.keys() - set(stated)
    for other in others:
        for name in sorted(names & other.flags.keys()):
            default = other.flags[name].default
            if default != program.flags[name].default:
                found.setdefault(name, []).append((other, default))
    return found


def _flags_of(words: Sequence[Word], script: str = "") -> Wanted:
    """Return the words that are flags whatever the program, without "=" and values."""
    texts = (word.text.partition("=")[0] for word in words if not word.asked or "=" in word.text)
    flags = (text for text in texts if text.startswith("--") and len(text) > len("--") and " " not in text)
    return Wanted(tuple(dict.fromkeys(flags)), "flags", _takes, script)


def _takes(program: Program, flag: str) -> bool:
    """Say whether a program has a flag and does not refuse it."""
    matching = matching_flags(flag, program)
    return len(matching) == 1 and matching[0].name not in program.refused


def _of_dialect(dialect: Dialect) -> tuple[Program, ...]:
    """Return the programs of a dialect, of each family the newest first."""
    ordered = (each for family in FAMILIES for each in reversed(family_of(family)))
    return tuple(each for each in ordered if each.dialect == dialect)


def _hinted(dialect: Dialect, hint: str) -> tuple[Program, ...]:
    """Return the programs that --from allows; none if it says nothing."""
    if not hint:
        return ()
    named = program(hint)
    if named.dialect != dialect:
        raise MigrateError(_of_other_dialect(dialect, hint))
    return tuple(reversed(family_of(hint))) if hint in FAMILIES else (named,)


def _of_other_dialect(dialect: Dialect, hint: str) -> str:
    families = ", ".join(family for family in FAMILIES if program(family).dialect == dialect)
    is_of = "GPT-NeoX's files" if dialect == "neox" else "the arguments of Megatron-LM or a program made of it"
    return f"--from {hint}: these are {is_of}.\nUse one of {families}, or leave --from out."


def _with_deepspeed(flags: Sequence[str]) -> tuple[Program, ...]:
    """Return the programs that have DeepSpeed's own flags, if a command has one; else none."""
    if not any(flag.startswith(("--deepspeed", "--deepscale")) for flag in flags):
        return ()
    return tuple(each for each in _of_dialect("megatron") if "--deepspeed" in each.spelled)
