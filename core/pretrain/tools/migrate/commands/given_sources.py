"""Sources and definitions as the command line gives them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from pretrain.errors import MigrateError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pretrain.tools.migrate.sources.source import Source

_RUNS = (
    "This is run for real, here and now: only python for a training, and launchers such as torchrun, deepspeed, srun\n"
    "and ssh, are replaced by stubs. Whatever else it does, such as removing files, happens."
)


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


def require_command(context: click.Context) -> None:
    """Check that --capture has a command, and that nothing is given which has no meaning with it, or without it.

    Raises:
        MigrateError: it is otherwise.
    """
    given = context.params
    if given["yes"] and not given["capture"]:
        msg = "--yes belongs to --capture.\nLeave it out, or give --capture -- bash train.sh."
        raise MigrateError(msg)
    if given["capture"] and given["define"]:
        msg = "--define: with --capture the command has its own environment.\nGive it: env NAME=VALUE pretrain migrate"
        raise MigrateError(msg)
    if given["capture"] and not given["sources"]:
        msg = "--capture: there is no command.\nGive it last: pretrain migrate --capture -- bash train.sh"
        raise MigrateError(msg)


def read_captured(command: tuple[str, ...], arguments: tuple[str, ...], *, agreed: bool) -> list[Source]:
    """Return what a command starts that is run for real, after asking; texts of --args come last.

    Raises:
        MigrateError: it is not to be run, or starts no training.
    """
    from pretrain.tools.migrate.sources.script_source import read_arguments, read_capture  # noqa: PLC0415

    click.echo(f"{shlex.join(command)}\n{_RUNS}", err=True)
    if not agreed and not _agrees():
        msg = "--capture: nothing is run.\nAnswer y, or give --yes in a script."
        raise MigrateError(msg)
    return [read_capture(command), *(read_arguments(text) for text in arguments)]


def _agrees() -> bool:
    try:
        return click.confirm("Run it?", err=True)
    except click.Abort:  # there is nobody to answer
        return False
