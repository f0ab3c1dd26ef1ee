"""One exit code for an error, however the ranks were started: the process's own, and what its launcher makes of it."""

from __future__ import annotations

import errno

import pytest

from pretrain.errors import CheckpointError, LostRanksError, NotFiniteError, RecipeError
from pretrain.exit_codes import ExitCode
from pretrain.launch.error_exit_code import exit_code_of
from pretrain.launch.processes.failure import Failure


def of_disk(number):
    try:
        raise CheckpointError("checkpoints cannot be written") from OSError(number, "the disk")
    except CheckpointError as error:
        return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RecipeError("a key"), ExitCode.USER_ERROR),
        (of_disk(errno.ENOSPC), ExitCode.USER_ERROR),
        (of_disk(errno.EIO), ExitCode.FAILURE),
        (NotFiniteError("rank 1"), ExitCode.FAILURE),
        (LostRanksError("rank 1"), ExitCode.FAILURE),
        (ZeroDivisionError(), ExitCode.FAILURE),
    ],
)
def test_only_what_a_repetition_meets_again_is_a_user_error(error, code):
    assert exit_code_of(error) == code
    assert Failure.of(error, 0, with_traceback=False).exit_code == code
