"""Random kills: what a killed training must not have lost, and the sum of parts that were run one after the other."""

from __future__ import annotations

import dataclasses
import json

import pytest

from structure.sources import ROOT

KILLED = (
    "iteration 12/200 | loss\nrank 0 failed:\nIt was killed by SIGKILL.\nrestart 1 of 9 in 1 s\n"
    "iteration 11/200 | loss\n"
    "rank 1 failed:\nTraceback\n  x\nRuntimeError: Connection closed by peer\n"
)


@pytest.fixture
def killed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.reliability import killed_training

    return killed_training


@pytest.fixture
def whole(killed, tmp_path):
    """The result of a training that came through."""
    steps = [("train", step, 5.0, 1.0) for step in range(1, killed.ITERATIONS + 1)]
    states = dict.fromkeys(range(killed.SAVED, killed.ITERATIONS + 1, killed.SAVED), "")
    return killed.Result(
        folder=tmp_path,
        steps=steps,
        evaluations=[("eval", 15, 4.5)],
        states=states,
        seconds=9.0,
        starting=5.0,
        kills=[killed.Kill("training", "rank 0"), killed.Kill("saving", "all")],
        restarts=1,
        repeated=10,
        codes=[0],
        outputs=[KILLED],
    )


def test_a_training_as_the_undisturbed_one_has_no_problem(whole):
    assert whole.problems(whole) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda whole: {"steps": [*whole.steps[:6], ("train", 7, 5.0 + 2**-50, 1.0), *whole.steps[7:]]},
            "numbers differ",
        ),
        (lambda whole: {"steps": whole.steps[:-1]}, "did not reach its end"),
        (lambda _: {"steps": []}, "did not reach its end"),
        (lambda whole: {"steps": [whole.steps[0], *whole.steps]}, "numbers differ"),
        (lambda whole: {"states": {**whole.states, 10: "x is damaged"}}, "lost or damaged"),
        (lambda whole: {"states": {step: "" for step in whole.states if step != 10}}, "lost or damaged"),
        (lambda _: {"evaluations": [("eval", 15, 4.6)]}, "evaluations differ"),
        (lambda _: {"left": ["process 4711 is left"]}, "process 4711 is left"),
        (lambda _: {"given_again": 2}, "3 starts followed on 2 kills"),
        (lambda _: {"repeated": 11}, "11 steps were repeated; 10 at most"),
        (lambda _: {"codes": [2, 0]}, "exit code 2"),
        (lambda _: {"codes": [None]}, "exit code None"),
        (lambda _: {"outputs": [f"{KILLED}rank 1 failed:\nValueError: x\nrestart 2 of 9 in 1 s\n"]}, "ValueError: x"),
    ],
)
def test_what_is_lost_is_told(whole, change, said):
    problems = dataclasses.replace(whole, **change(whole)).problems(whole)
    assert any(said in problem for problem in problems)


def test_parts_are_added_and_one_of_the_same_seed_is_replaced(killed, tmp_path, monkeypatch):
    from benchmarks import machine
    from benchmarks.reliability import random_kills

    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    for seed, kills in ((1, 20), (2, 30), (1, 25)):
        random_kills.keep(dict.fromkeys(random_kills.COUNTED, kills) | {"seed": seed})
    kept = json.loads((tmp_path / "random_kills.json").read_text())
    assert kept["total"]["kills"] == 55
    assert [part["seed"] for part in kept["parts"]] == [2, 1]
    assert kept["ranks"] == 2
