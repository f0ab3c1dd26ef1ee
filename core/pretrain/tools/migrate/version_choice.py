"""The program and version that sources are taken for; a version matters for its defaults alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.recipe.section import as_text
from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.parsing import own_flags, parse
from pretrain.tools.migrate.programs import FAMILIES, family_of, program, version_of
from pretrain.tools.migrate.translation import dialect_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.tools.migrate.programs import Dialect, Program
    from pretrain.tools.migrate.setting import Setting, Word
    from pretrain.tools.migrate.sources.files import MigrateSource

_NAMED = 3  # flags that a reason names


@dataclass(frozen=True, slots=True)
class ProgramChoice:
    """A program that was chosen."""

    program: Program  # the version
    why: str  # for the user: "Megatron-LM 23.08 of October 2023, the newest version that takes --data-impl"
    unknown: tuple[str, ...] = ()  # flags, keys or names that it does not take
    others: tuple[Program, ...] = ()  # related programs that are as good, of each family the newest first


@dataclass(frozen=True, slots=True)
class Named:
    """Names that a training states."""

    names: tuple[str, ...]  # flags or keys
    called: str  # "flags" or "keys"
    takes: Callable[[Program, str], bool]  # whether a program takes one
    script: str = ""  # file that starts the training; empty if it is not known


def is_neox(source: MigrateSource) -> bool:
    """Say whether a source is GPT-NeoX's."""
    return source.kind == "neox" or (source.kind == "log" and source.program == "train.py")


def chosen_program(sources: Sequence[MigrateSource], hint: str) -> ProgramChoice:
    """Choose the program of all sources: by the names in a log or a file where there is one, else by the flags."""
    listed = [name for source in sources for name in source.settings]
    if any(is_neox(source) for source in sources):
        return choose_for_keys(listed, hint)
    if listed:
        return choose_for_log(listed, hint)
    script = next((source.program for source in sources if source.program), "")
    return choose([word for source in sources for word in source.words], hint, script)


def choose(words: Sequence[Word], hint: str = "", script: str = "") -> ProgramChoice:
    """Choose the program that a command is for: the newest version that takes all its flags, or else most."""
    texts = (word.text.partition("=")[0] for word in words if not word.asked or "=" in word.text)
    flags = (text for text in texts if text.startswith("--") and len(text) > len("--") and " " not in text)
    short = (each.written for each in parse(words, program(FAMILIES[0])).unknown if not each.written.startswith("--"))
    stated = (*(flag for flag in dict.fromkeys(flags) if _tells(flag)), *dict.fromkeys(short))
    named = Named(stated, "flags", _takes, script)
    with_deepspeed = any(flag.startswith(("--deepspeed", "--deepscale")) for flag in named.names)
    among = [each for each in _of_dialect("megatron") if not with_deepspeed or "--deepspeed" in each.spelled]
    return _newest_fitting(_hinted("megatron", hint) or among, named, hint)


def _tells(flag: str) -> bool:
    """Say whether a flag tells the version: not if only the beginning of its name is known, as of --moe-router-topk."""
    newest = program(FAMILIES[0])
    is_listed = flag in newest.spelled or flag in newest.elsewhere
    return is_listed or dialect_of(newest).meaning(flag.lstrip("-").replace("-", "_")) is None


def _takes(program: Program, flag: str) -> bool:
    matching = own_flags(flag, program)
    return len(matching) == 1 and matching[0].name not in program.refused


def choose_for_keys(keys: Iterable[str], hint: str = "") -> ProgramChoice:
    """Choose the version of GPT-NeoX that files with some keys are for."""
    names = tuple(dict.fromkeys(key.replace("-", "_") for key in keys))
    named = Named(names, "keys", lambda each, name: name in each.flags)
    return _newest_fitting(_hinted("neox", hint) or _of_dialect("neox"), named, hint)


def choose_for_log(names: Iterable[str], hint: str = "") -> ProgramChoice:
    """Choose the program that a log of all arguments is of: one that has all flags in it, and fewest others."""
    # Such a log also has names that are flags of no version, "world_size".
    stated = frozenset(names)
    programs = _of_dialect("megatron")
    flags = {name for each in programs for name in each.flags if name in stated}

    def distance(each: Program) -> tuple[int, int]:
        return len(flags - each.flags.keys()), len(each.flags.keys() - each.refused - stated)

    chosen = min(_hinted("megatron", hint) or programs, key=distance)
    by_hint = f"as --from {hint} says, " if hint else ""
    why = f"{chosen.title}, {by_hint}whose flags are nearest to the names in the log"
    return ProgramChoice(chosen, why, tuple(sorted(stated - chosen.flags.keys())))


def _newest_fitting(among: Sequence[Program], named: Named, hint: str) -> ProgramChoice:
    """Choose the first of some programs that takes most; of equal ones the first that the script starts."""
    missing = {each.name: tuple(name for name in named.names if not named.takes(each, name)) for each in among}
    fewest = min(map(len, missing.values()))
    fitting = [each for each in among if len(missing[each.name]) == fewest]
    fitting = [each for each in fitting if named.script in version_of(each).scripts] or fitting
    chosen, *others = fitting
    newer = [each for each in among[: among.index(chosen)] if _are_related(each, chosen)]
    reason = _reason(named, missing[chosen.name], [missing[each.name] for each in newer], is_hinted=len(among) == 1)
    why = f"{chosen.title}, {f'as --from {hint} says, ' if hint else ''}{reason}"
    related = tuple(each for each in others if _are_related(each, chosen))
    return ProgramChoice(chosen, why, missing[chosen.name], related)


def _are_related(one: Program, other: Program) -> bool:
    """Say whether a command may be for either: versions of one family, or of both Megatron-DeepSpeeds."""
    same_family = version_of(one).family == version_of(other).family
    return same_family or ("--deepspeed" in one.spelled and "--deepspeed" in other.spelled)


def _reason(named: Named, missing: Sequence[str], newer: Sequence[Sequence[str]], *, is_hinted: bool) -> str:
    if missing and is_hinted:
        return f"though it does not take {_listed(missing)}"
    if missing:
        return f"which takes most of the {named.called}, but not {_listed(missing)}"
    if is_hinted or not newer:
        return f"{'' if is_hinted else 'the newest version, '}which takes all the {named.called}"
    lost = list(dict.fromkeys(name for names in newer for name in names))
    if not all(newer):
        return f"the newest version with {named.script} that takes {_listed(lost) or f'all the {named.called}'}"
    decisive = [name for name in lost if all(name in names for names in newer)]
    return f"the newest version that takes {_listed(decisive or lost)}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")


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
        families = ", ".join(family for family in FAMILIES if program(family).dialect == dialect)
        theirs = "GPT-NeoX's files" if dialect == "neox" else "the arguments of Megatron-LM or a program made of it"
        msg = f"--from {hint}: the sources are {theirs}.\nGive one of {families}, or leave --from out."
        raise MigrateError(msg)
    return tuple(reversed(family_of(hint))) if hint in FAMILIES else (named,)


def differing_defaults(
    program: Program, others: Iterable[Program], stated: Iterable[str]
) -> dict[str, list[tuple[Program, Any]]]:
    """Return other programs' defaults of settings that are not stated, by name, where they differ."""
    found: dict[str, list[tuple[Program, Any]]] = {}
    names = program.flags.keys() - set(stated)
    for other in others:
        for name in sorted(names & other.flags.keys()):
            default = other.flags[name].default
            if default != program.flags[name].default:
                found.setdefault(name, []).append((other, default))
    return found


def doubts(choice: ProgramChoice, stated: Mapping[str, Setting]) -> list[str]:
    """Return a notice on settings that nobody stated and of which other versions have another default."""
    meaning = dialect_of(choice.program).meaning
    others = choice.others if choice.program.dialect == "megatron" else family_of(choice.program.name)
    lines = []
    for name, found in differing_defaults(choice.program, others, stated).items():
        default, (other, value) = choice.program.flags[name].default, found[0]
        if isinstance(meaning(name), Mapped) and (default or value):
            more = f" and {len(found) - 1} other{'s' * bool(found[2:])}" if found[1:] else ""
            written = choice.program.flags[name].spellings[0]
            lines.append(f"{written} is {_shown(default)} by default, but {_shown(value)} in {other.title}{more}")
    return [f"other versions differ in defaults (--from chooses one): {'; '.join(lines)}"] if lines else []


def _shown(value: object) -> str:
    return "not set" if value is None else as_text(value)
