"""The program, and the version of it, that sources are taken for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.arguments.version_choice import choose, choose_for_keys, choose_for_log, differing_defaults
from pretrain.tools.migrate.dialects import dialect_of
from pretrain.tools.migrate.meanings.meaning import Carried
from pretrain.tools.migrate.programs.known import family_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pretrain.tools.migrate.arguments.fitting import Choice
    from pretrain.tools.migrate.setting import Setting
    from pretrain.tools.migrate.sources.source import Source


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
