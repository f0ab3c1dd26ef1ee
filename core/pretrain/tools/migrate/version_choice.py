"""Choice of the program and version that a command, the keys of files, or a log are of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import Carried
from pretrain.tools.migrate.parsing import matching_flags
from pretrain.tools.migrate.programs import FAMILIES, family_of, program, version_of
from pretrain.tools.migrate.translation import dialect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.tools.migrate.programs import Dialect, Program
    from pretrain.tools.migrate.setting import Setting, Word
    from pretrain.tools.migrate.sources.files import Source


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


def is_neox(source: Source) -> bool:
    """Say whether a source is GPT-NeoX's."""
    return source.kind == "neox" or (source.kind == "log" and source.program == "train.py")


def chosen_program(sources: Sequence[Source], hint: str) -> Choice:
    """Choose the program of all sources: by the names in a log or a file where there is one, else by the flags.

    Args:
        sources: of one training.
        hint: --from.

    Raises:
        MigrateError: no program has the name in the hint.
    """
    if any(is_neox(source) for source in sources):
        return choose_for_keys([name for source in sources for name in source.settings], hint)
    listed = [name for source in sources for name in source.settings]
    if listed:
        return choose_for_log(listed, hint)
    script = next((source.program for source in sources if source.program), "")
    return choose([word for source in sources for word in source.words], hint, script)


def doubts(choice: Choice, stated: Mapping[str, Setting]) -> list[str]:
    """Return a notice on settings that nobody stated and of which other versions have another default."""
    meaning = dialect_of(choice.program).meaning
    others = choice.others if choice.program.dialect == "megatron" else family_of(choice.program.name)
    differing = differing_defaults(choice.program, others, stated)
    lines = []
    for name, found in differing.items():
        default, (other, value) = choice.program.flags[name].default, found[0]
        if isinstance(meaning(name), Carried) and (default or value):
            more = f" and {len(found) - 1} others" if found[1:] else ""
            lines.append(f"{name} is {_shown(default)} by default, but {_shown(value)} in {other.title}{more}")
    return list(_notice(lines))


def _notice(lines: Sequence[str]) -> Iterable[str]:
    if lines:
        yield f"other versions differ in defaults (--from chooses one): {'; '.join(lines)}"


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return str(value).lower() if isinstance(value, bool) else str(value)
