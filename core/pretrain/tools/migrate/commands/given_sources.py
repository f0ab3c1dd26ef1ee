"""Sources and definitions as the command line gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.errors import MigrateError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.tools.migrate.sources.source import Source


def defined_values(definitions: tuple[str, ...]) -> dict[str, str]:
    """Return the values of --define by name.

    Raises:
        MigrateError: one is not NAME=VALUE.
    """
    pairs = [definition.partition("=") for definition in definitions]
    for name, equals, _ in pairs:
        if not name or not equals:
            msg = f"--define {name}: a definition is NAME=VALUE."
            raise MigrateError(msg)
    return {name: value for name, _, value in pairs}


def read_given(sources: tuple[str, ...], arguments: Iterable[str], defined: Mapping[str, str]) -> list[Source]:
    """Return all sources; those of --args come last.

    Raises:
        MigrateError: one cannot be read, or none has a variable that is defined.
    """
    from pretrain.tools.migrate.sources.recognition import read_sources  # noqa: PLC0415  kept out of --help
    from pretrain.tools.migrate.sources.script_source import read_arguments  # noqa: PLC0415

    read = [*read_sources(sources, defined), *(read_arguments(text, defined) for text in arguments)]
    unread = defined.keys() - {name for source in read for name in source.read_names}
    if unread:
        name = min(unread)
        near = did_you_mean(name, (known for source in read for known in source.read_names))
        msg = f"--define {name}: no source has this variable.{near}\nCorrect its name, or leave it out."
        raise MigrateError(msg)
    return read


def only_preprocesses(sources: list[Source]) -> bool:
    """Return whether sources build token files and train nothing."""
    return all(source.preprocessing and not source.words and not source.settings for source in sources)
