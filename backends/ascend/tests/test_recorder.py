"""HCCL's recorder: entries as torch_npu 2.13 gives them, without an operation, and with a prefix before group names."""

import pickle
from types import SimpleNamespace

import pytest

from pretrain_ascend import collectives
from pretrain_ascend.backend import AscendBackend

ENTRY = {
    "process_group": ("group_name_12", ""),
    "collective_seq_id": 76,
    "p2p_seq_id": 0,
    "profiling_name": "",
    "time_created_ns": 1_795_421_629_400_120_076,
    "input_sizes": [[32, 2, 32]],
    "input_dtypes": ["BFloat16"],
    "state": "scheduled",
    "retired": False,
    "is_p2p": False,
}


def installed(monkeypatch, **members):
    binding = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**members)))
    monkeypatch.setattr(collectives, "import_module", lambda _name: binding)


def test_an_entry_becomes_a_collective_of_its_group(monkeypatch):
    groups = {"12": ("TENSOR_MODEL_PARALLEL_GROUP", (0, 1))}
    monkeypatch.setattr("pretrain.plugins.collective_record.groups_by_name", lambda: groups)
    installed(monkeypatch, _dump_hccl_trace=lambda *_: pickle.dumps({"entries": [ENTRY]}))
    (found,) = collectives.of_hccl()
    assert (found.library, found.group, found.ranks) == ("hccl", "TENSOR_MODEL_PARALLEL_GROUP", (0, 1))
    assert (found.number, found.shapes, found.dtype, found.pending) == (76, ((32, 2, 32),), "bfloat16", True)


def test_an_error_of_torch_npus_leaves_what_torch_knows(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.collective_record.of_flight_recorder", lambda: ["of gloo"])
    installed(monkeypatch, _dump_hccl_trace=lambda *_: 1 / 0)
    assert AscendBackend().recent_collectives() == ["of gloo"]


@pytest.mark.parametrize("members", [{}, {"_dump_hccl_trace": lambda *_: pickle.dumps({"pg_status": {}})}])
def test_an_older_torch_npu_and_a_recorder_that_is_off_know_none(monkeypatch, members):
    installed(monkeypatch, **members)
    assert collectives.of_hccl() == []
