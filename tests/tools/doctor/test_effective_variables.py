"""Environment variables that are set and change a training."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from pretrain.cores import available_cores
from pretrain.cpu.backend import CpuBackend
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.host_limits import EFFECTS, examine_variables


class Device(CpuBackend):
    effective_variables = MappingProxyType({"NCCL_P2P_DISABLE": "1 copies through host memory"})


def texts(given, ranks=1):
    return [(f.verdict, f.text) for f in examine_variables(Device(), given, ranks)]


def test_none_is_set():
    number = len(EFFECTS) + 2
    assert texts({"HOME": "x", "LD_PRELOAD": ""}) == [
        (Verdict.OK, f"none of {number} variables that change a training or its speed is set")
    ]


def test_one_of_torchs_and_one_of_the_devices_libraries():
    assert texts({"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "NCCL_P2P_DISABLE": "1"}) == [
        (Verdict.LOOK, "NCCL_P2P_DISABLE=1: 1 copies through host memory"),
        (Verdict.LOOK, "TORCH_DISTRIBUTED_DEBUG=DETAIL: DETAIL checks every collective on all ranks; slower"),
    ]


@pytest.mark.parametrize("ranks", [1, available_cores() + 1])
def test_threads_other_than_the_ranks_share_of_the_cores(ranks):
    share = max(1, available_cores() // ranks)
    ((verdict, text),) = texts({"OMP_NUM_THREADS": str(share + 6)}, ranks)
    assert verdict is Verdict.LOOK
    assert text.endswith(f"this rank's share of the cores is {share}")
    assert texts({"OMP_NUM_THREADS": str(share)}, ranks)[0][0] is Verdict.OK  # the launcher's own


def test_the_advice_about_threads_holds_whatever_started_the_ranks():
    share = available_cores()
    (finding,) = examine_variables(Device(), {"OMP_NUM_THREADS": str(share + 1)}, 1)
    command = f"export OMP_NUM_THREADS={share}"
    assert finding.remedy == f"{command}, before the command that starts the ranks, on every node."
