"""A failed rank program is reported with its output, and ends the other ranks."""

import pytest

from rank_programs import run_ranks

PROGRAM = """\
import sys, time
rank, how = sys.argv[1:]
print("rank", rank, flush=True)
if how == "fails" and rank == "0":
    time.sleep(600)
if how == "fails":
    sys.exit("no room")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr("rank_programs.TESTS", tmp_path)
    return tmp_path


def test_ranks_that_end_well_are_no_error(program):
    run_ranks("program", "{rank}", "ends", folder=program, world_size=2)
    assert [(program / f"{rank}.log").read_text() for rank in (0, 1)] == ["rank 0\n", "rank 1\n"]


def test_the_output_of_a_rank_that_fails_is_shown_and_the_others_are_ended(program):
    with pytest.raises(AssertionError, match=r"rank 1 of program ended with 1; its output:\n(?s:.*)no room"):
        run_ranks("program", "{rank}", "fails", folder=program, world_size=2)
