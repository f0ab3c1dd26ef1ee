"""The end of a step: what ranks have measured, and of those that have not the cause alone."""

from types import SimpleNamespace

import pytest

from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.ranks.step_sequence import StepResult

SILENT = Finding(check="ranks", verdict=Verdict.WRONG, text="rank 2 did not answer", ranks=(2,))


def ending(given, *, silent=(), collective=True):
    def judge(values):
        return [Finding(check="links", verdict=Verdict.OK, text=f"{sorted(values)} measured")]

    step = SimpleNamespace(name="links", collective=collective, judge=judge)
    return StepResult(step, given, list(silent))


def texts(end):
    return [finding.text for finding in end.findings(30)]


def test_with_all_values_the_next_step_follows():
    end = ending({0: {"value": None}, 1: {"value": 5}})
    assert end.values == {1: 5}  # rank 0 had no part in the step
    assert not end.is_last
    assert texts(end) == ["[1] measured"]


def test_ranks_that_wait_for_a_silent_one_or_lose_it_are_not_named():
    end = ending({0: {"stuck": "all-reduce"}, 1: {"error": "DistError: connection closed"}}, silent=[SILENT])
    assert end.is_last
    assert texts(end) == ["rank 2 did not answer"]


def test_ranks_that_wait_for_each_other_are_named_with_what_has_no_end():
    end = ending({rank: {"stuck": "all-reduce, 4 KiB"} for rank in range(4)})
    assert end.is_last
    assert texts(end) == ["ranks 0-3: all-reduce, 4 KiB did not finish within 30 s"]
    assert "all ranks are alive" in end.findings(30)[0].remedy


def test_of_an_error_and_those_that_wait_for_it_the_error_is_named():
    end = ending({0: {"stuck": "all-reduce"}, 1: {"error": "RuntimeError: no memory"}})
    (found,) = end.findings(30)
    assert (found.text, found.ranks, found.verdict) == ("RuntimeError: no memory", (1,), Verdict.WRONG)


@pytest.mark.parametrize("collective", [True, False])
def test_an_error_ends_the_examination_where_ranks_wait_for_each_other(collective):
    end = ending({0: {"value": 1}, 1: {"error": "OSError: no such file"}}, collective=collective)
    assert end.is_last is collective
    assert texts(end) == ["[0] measured", "OSError: no such file"]


def test_a_judgement_that_fails_is_a_finding_and_the_cause_is_still_named():
    step = SimpleNamespace(name="links", collective=True, judge=lambda values: [values[2]])
    failed, silent = StepResult(step, {0: {"value": 1}}, [SILENT]).findings(30)
    assert (failed.check, failed.verdict, failed.text) == ("links", Verdict.WRONG, "KeyError: 2")
    assert silent == SILENT
