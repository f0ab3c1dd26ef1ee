"""The console script `pretrain`: handles signals before it imports anything slow."""

from __future__ import annotations

from pretrain.launch.processes.early_signals import handle_early_signals

TYPE_CHECKING = False  # the import of typing would take longer than all that comes before the handlers
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; see `command_line.run` for its exit codes."""
    handle_early_signals()
    from pretrain.cli.command_line import run  # noqa: PLC0415  Ctrl-C during its imports is handled

    run(arguments)


if __name__ == "__main__":
    main()
