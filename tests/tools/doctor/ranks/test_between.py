"""Ranks that are examined together: healthy ones pass, and each fault made on purpose is found and named."""

import pytest

from pretrain.tools.doctor.finding import Verdict
from recipe.smallest import SMALLEST
from tools.doctor.ranks.examined import examine
from tools.doctor.written_tokens import write_tokens

pytestmark = pytest.mark.usefixtures("forked_python")


def texts(findings, verdict):
    return [finding.text for finding in findings if finding.verdict is verdict]


def test_two_healthy_ranks_of_two_nodes_pass(tmp_path):
    recipe = SMALLEST | {"data": {"path": str(write_tokens(tmp_path / "corpus", range(100)))}}
    rank, code, findings = examine(tmp_path, nodes=2, recipe=recipe)
    assert (rank, code) == (0, 0)
    assert not texts(findings, Verdict.WRONG)
    checks = ["kernel norm", "cores", "one recipe", "checkpoint folder", "clocks", "all-reduce", "point-to-point"]
    assert {finding.check for finding in findings} >= set(checks)
    assert [finding.ranks for finding in findings if finding.check == "kernel norm"] == [()]
    assert [finding.ranks for finding in findings if finding.check == "memory"] == [(0,), (1,)]
    assert any(text.endswith("is shared by 2 nodes") for text in texts(findings, Verdict.OK))
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.full
def test_what_only_one_rank_lacks_is_named_with_rank_and_host(tmp_path):
    """A token file that is missing, a folder that is not shared, and a device that is slow."""
    other = tmp_path / "other"
    other.mkdir()
    rank, code, findings = examine(
        tmp_path,
        nodes=2,
        recipe=SMALLEST
        | {"data": {"path": str(write_tokens(tmp_path / "corpus", range(100)))}, "checkpoint": {"save": str(tmp_path)}},
        overrides={1: ["data.path=elsewhere/corpus", f"checkpoint.save={other}"]},
        faults={0: ["is_slow"]},
    )
    assert (rank, code) == (0, 1)
    different, shared = (finding for finding in findings if finding.verdict is Verdict.WRONG)
    assert different.check == "one recipe"
    assert "checkpoint.save: " in different.remedy
    assert "token files 1 of 1: token file elsewhere/corpus.idx is missing. on " in different.remedy
    folder = shared.text
    assert folder.startswith("not shared: rank 0 (host ")
    assert str(other) in folder
    assert any(text.startswith("rank 0: a matmul of ") for text in texts(findings, Verdict.LOOK))


@pytest.mark.parametrize(
    ("ranks", "faults", "absent", "reporting", "said"),
    [
        (2, {}, [1], 0, "rank 1 of 2 did not connect to 127.0.0.1:"),
        pytest.param(3, {1: ["stops", "all-reduce"]}, [], 0, "rank 1 (host ", marks=pytest.mark.full),
        pytest.param(2, {1: ["dies", "kernel norm"]}, [], 0, "rank 1 (host ", marks=pytest.mark.full),
        pytest.param(3, {0: ["stops", "all-reduce"]}, [], 1, "rank 0 (host ", marks=pytest.mark.full),
        pytest.param(2, {}, [0], 1, "rank 0 of 2 did not connect to 127.0.0.1:", marks=pytest.mark.full),
    ],
    ids=["never comes", "stops in a collective", "dies", "rank 0 stops", "rank 0 never comes"],
)
def test_a_silent_rank_is_named_by_the_lowest_one_that_is_there(tmp_path, ranks, faults, absent, reporting, said):
    timeout = 5.0 if absent else 20.0  # those that are there must also meet within it, on a busy machine
    rank, code, findings = examine(tmp_path, ranks, faults=faults, absent=absent, timeout=timeout, limit=300)
    (text,) = texts(findings, Verdict.WRONG)
    assert (rank, code) == (reporting, 1)
    assert text.startswith(said)
    if absent:
        assert text.endswith("within 5 s")
    else:
        doing = next(iter(faults.values()))[1]
        assert "did not answer within 20 s; its last action: " in text
        assert doing in text
    assert "kernel norm" in {finding.check for finding in findings}


@pytest.mark.full
def test_where_a_device_is_missing_all_ranks_leave_in_peace_and_one_reports(tmp_path):
    """The last steps are left out; rank 0, which serves the board, must not leave before the others."""
    others = {}
    rank, code, findings = examine(tmp_path, 3, faults={2: ["lacks_its_device"]}, others=others)
    assert (rank, code) == (0, 0)
    assert "speed and links are not measured: no device on rank 2" in texts(findings, Verdict.LOOK)
    assert others == {1: 0, 2: 0}
    assert [file.name for file in tmp_path.glob("*.json")] == ["0.json"]


@pytest.mark.full
def test_a_rank_that_is_stopped_while_it_writes_leaves_no_file(tmp_path):
    recipe = SMALLEST | {"data": {"path": str(write_tokens(tmp_path / "corpus", range(100)))}}
    recipe |= {"checkpoint": {"save": str(tmp_path)}}
    faults = {1: ["stops", "look in "]}
    _, code, findings = examine(tmp_path, nodes=2, recipe=recipe, faults=faults, timeout=4.0, limit=300)
    assert code == 1
    assert any(text.startswith("rank 1 (host ") for text in texts(findings, Verdict.WRONG))
    assert not [file.name for file in tmp_path.iterdir() if file.name.startswith(".")]


@pytest.mark.full
def test_a_rank_that_gets_one_answer_late_does_not_report_too(tmp_path):
    others, faults = {}, {1: ["loses_the_board_for_a_moment", "kernel norm"]}
    rank, code, _ = examine(tmp_path, faults=faults, others=others)
    assert (rank, code, others) == (0, 0, {1: 0})
    assert [file.name for file in tmp_path.glob("*.json")] == ["0.json"]
