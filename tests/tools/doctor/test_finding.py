"""Output: a line for each finding, what to do below it, and JSON."""

from __future__ import annotations

import json

from pretrain.tools.doctor.finding import Finding, Verdict, as_json, as_text, is_ok

FINE = Finding(check="versions", verdict=Verdict.OK, text="torch 2.13.0")
SLOW = Finding(check="clocks", verdict=Verdict.LOOK, text="slowed down", remedy="Look at\nthe cooling.", ranks=(1, 2))
BROKEN = Finding(check="kernel norm", verdict=Verdict.WRONG, text="off by 0.5", ranks=(3,))
SILENT = Finding(check="ranks", verdict=Verdict.WRONG, text="rank 3 (host b) is silent", ranks=(3,))


def test_lines():
    assert as_text([FINE, SLOW, BROKEN, SILENT]).splitlines() == [
        "ok     versions     torch 2.13.0",
        "look   clocks       ranks 1-2: slowed down",
        "                    Look at",
        "                    the cooling.",
        "wrong  kernel norm  rank 3: off by 0.5",
        "wrong  ranks        rank 3 (host b) is silent",
        "1 ok, 1 look, 2 wrong: a training would fail or give wrong results",
    ]


def test_what_is_only_slow_does_not_keep_a_training_from_starting():
    assert as_text([FINE, SLOW]).splitlines()[-1] == "1 ok, 1 look, 0 wrong: a training can start"
    assert is_ok([FINE, SLOW])
    assert not is_ok([FINE, BROKEN])


def test_json():
    assert json.loads(as_json([FINE, BROKEN])) == {
        "ok": False,
        "findings": [
            {"check": "versions", "verdict": "ok", "text": "torch 2.13.0", "remedy": "", "ranks": []},
            {"check": "kernel norm", "verdict": "wrong", "text": "off by 0.5", "remedy": "", "ranks": [3]},
        ],
    }
    assert json.loads(as_json([]))["ok"] is True
