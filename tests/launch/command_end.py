"""End of a launcher of the tests: as `pretrain run` ends."""

import sys

from pretrain.cli.run import show_failure
from pretrain.errors import PretrainError


def leave(failure):
    """Show the failure, or the stop, as the command does, and exit with its code."""
    try:
        sys.exit(show_failure(failure))
    except PretrainError as error:
        print(error, file=sys.stderr)
        sys.exit(failure.exit_code)
