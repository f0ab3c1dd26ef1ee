"""Health of NPUs and of their software, as npu-smi, torch_npu and CANN say."""

from __future__ import annotations

import pytest

from pretrain_ascend import environment, software
from pretrain_ascend.backend import AscendBackend

TABLE = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 25.0.rc1                 Version: 25.0.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 93.4        40                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3392 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | {state:<14}| 92.1        38                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          3392 / 65536         |
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 1       0                 | 12345         | python                   | 3400                    |
+===========================+===============+====================================================+
"""


def remarks(state, *, some_are_hidden=False):
    found = software.npu_remarks(TABLE.format(state=state), some_are_hidden=some_are_hidden)
    return [(remark.verdict, remark.text) for remark in found]


def test_npus_that_are_well():
    assert remarks("OK") == [("ok", "2 NPUs of this machine are OK")]


@pytest.mark.parametrize(("state", "verdict"), [("Warning", "look"), ("Alarm", "wrong"), ("Critical", "wrong")])
def test_an_npu_that_is_not_is_named(state, verdict):
    assert remarks(state) == [(verdict, f"NPU 1 (910B3): {state}")]


def test_an_npu_that_may_be_hidden_keeps_no_training_from_starting():
    assert remarks("Alarm", some_are_hidden=True) == [("look", "NPU 1 (910B3): Alarm")]


def test_without_npu_smi_nothing_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(software, "missing", lambda: None)
    monkeypatch.setattr(software, "cann", lambda: "8.5.0")
    monkeypatch.setattr(software, "version", lambda: "2.9.0")
    assert [(remark.subject, remark.verdict) for remark in software.health(some_are_hidden=False)] == [
        ("torch_npu", "ok")
    ]


def test_a_pair_that_huawei_does_not_release_together_is_shown(monkeypatch):
    monkeypatch.setattr(software, "missing", lambda: None)
    monkeypatch.setattr(software, "cann", lambda: "8.5.0")
    monkeypatch.setattr(software, "version", lambda: "2.12.0")
    remark = next(iter(software.health(some_are_hidden=False)))
    assert (remark.verdict, remark.text) == ("look", "Huawei pairs torch_npu 2.12.0 with CANN 9.1, not 8.5.0")


def test_what_availability_says_is_not_said_twice(monkeypatch):
    monkeypatch.setattr(software, "missing", lambda: ("torch_npu is not installed", "pip install it"))
    assert AscendBackend().health() == ()


def test_variables_have_an_effect_in_words():
    assert AscendBackend.effective_variables is environment.EFFECTIVE
    assert {"ASCEND_LAUNCH_BLOCKING", "HCCL_IF_IP"} <= set(environment.EFFECTIVE)
