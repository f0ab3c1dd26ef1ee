"""NCCL's recorder, which is another one than that of gloo."""

import pickle

import pytest

from pretrain_cuda.backend import CudaBackend

ENTRY = {
    "process_group": ("7", "TENSOR_MODEL_PARALLEL_GROUP"),
    "collective_seq_id": 3,
    "p2p_seq_id": 0,
    "profiling_name": "nccl:all_reduce",
    "time_created_ns": 2_000_000_000,
    "input_sizes": [[4, 8]],
    "input_dtypes": ["Float"],
    "state": "started",
    "retired": False,
    "is_p2p": False,
}
DUMP = "torch._C._distributed_c10d._dump_nccl_trace"


@pytest.fixture(autouse=True)
def _of_gloo(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.collective_record.of_flight_recorder", lambda: ["of gloo"])


def test_it_is_read_beside_that_of_gloo(monkeypatch):
    monkeypatch.setattr(DUMP, lambda *_: pickle.dumps({"entries": [ENTRY]}), raising=False)
    of_gloo, of_nccl = CudaBackend().recent_collectives()
    assert of_gloo == "of gloo"
    assert (of_nccl.library, of_nccl.operation, of_nccl.number, of_nccl.pending) == ("nccl", "all_reduce", 3, True)


def test_a_build_without_nccl_knows_none(monkeypatch):
    monkeypatch.delattr(DUMP, raising=False)
    assert CudaBackend().recent_collectives() == ["of gloo"]


def test_its_error_leaves_what_torch_knows(monkeypatch):
    monkeypatch.setattr(DUMP, lambda *_: 1 / 0, raising=False)
    assert CudaBackend().recent_collectives() == ["of gloo"]
