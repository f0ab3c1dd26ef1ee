"""The command line: calls a command and shows known errors without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

import click

import pretrain
from pretrain.cli.commands import COMPLETION_VARIABLE, LazyCommands
from pretrain.errors import PretrainError, shows_traceback
from pretrain.exit_codes import ExitCode, of_signal

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.group(
    cls=LazyCommands,
    subcommand_metavar="RECIPE | COMMAND [ARGS]...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog="pretrain RECIPE is short for pretrain run RECIPE. PRETRAIN_TRACEBACK=1 shows the traceback of an error.",
)
@click.version_option(pretrain.__version__, "-V", "--version", message="pretrain %(version)s")
def commands() -> None:
    """Large-language-model pretraining whose hardware is a plugin.

    \b
    pretrain --backend cpu recipes/quickstart.yml      train
    pretrain explain recipes/gpt3.yml --backend cpu    what would run, and why
    """  # noqa: D301  \b is click's mark for text that keeps its lines


def run(arguments: Sequence[str] | None) -> NoReturn:
    """Run the command line and exit with what the command returns, 2 for a user error, 130 when interrupted."""
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # only the named backend loads its device's library
    if os.environ.get(COMPLETION_VARIABLE):
        _complete()
    try:
        status = commands.main(arguments, prog_name="pretrain", standalone_mode=False)
    except (PretrainError, click.ClickException) as error:
        _show(error)
        sys.exit(_code_of(error))
    except OSError as error:
        if error.filename is None:  # not about a file: a bug
            raise
        _show(PretrainError(f"{error.filename}: {error.strerror}"), error)
        sys.exit(ExitCode.USER_ERROR)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(of_signal(signal.SIGINT))
    sys.exit(status if isinstance(status, int) else ExitCode.COMPLETE)


def _complete() -> NoReturn:
    """Answer a shell that completes a line; an error must not be written into that line."""
    with suppress(Exception):
        from pretrain.cli import completion  # noqa: PLC0415, F401  it tells click how shells are served here

        commands.main([], prog_name="pretrain")
    sys.exit(ExitCode.USER_ERROR)


def _code_of(error: PretrainError | click.ClickException) -> ExitCode:
    """Return what a rank under a launcher of ours ends with: a disk that fails and a NaN are no errors of the user."""
    if isinstance(error, click.ClickException):
        return ExitCode.USER_ERROR
    from pretrain.launch.process_exit import exit_code_of  # noqa: PLC0415  only for an error

    return exit_code_of(error)


def _show(error: PretrainError | click.ClickException, cause: Exception | None = None) -> None:
    """Print a user error, or the traceback (of its cause) on demand."""
    if shows_traceback():
        import traceback  # noqa: PLC0415  a tenth of the time of --help

        traceback.print_exception(cause or error)
        return
    message = error.format_message() if isinstance(error, click.ClickException) else str(error)
    click.echo(message, err=True)
    if isinstance(error, click.UsageError) and error.ctx is not None:
        click.echo(f"Try '{error.ctx.command_path} --help'.", err=True)
