"""Ranks of large jobs on fake GPUs: every launch, collective, wait and byte. docs/fake-gpu.md has the limits.

A job that raises fails all of its tests: a launch that does not bind or compile, a grid that is not allowed, tensors on
two devices.
"""

from __future__ import annotations

import sys

import pytest
import torch

from fake_gpu import expected, figures
from fake_gpu.jobs import ALWAYS, DEEPSPEED, EXPERTS, FULL, JOBS, MEGATRON

pytestmark = [
    pytest.mark.xdist_group("fake GPUs"),
    pytest.mark.skipif(
        torch.version.cuda is not None or sys.platform != "linux",
        reason="fake GPUs are made of torch's CPU build on Linux",
    ),
]

BUCKETS = 1.01
"""Buckets of gradients end at multiples of what the ranks share and NCCL likes: at most a hundredth is padding."""

SCALARS = 64
"""Bytes of norms and flags that DeepSpeed sums over the replicas."""


def each(names):
    """The jobs of that name; `full` ones in `make test-all` alone."""
    marked = [pytest.param(name, marks=[pytest.mark.full] * (name in FULL)) for name in names]
    return pytest.mark.parametrize("name", marked)


@pytest.fixture
def answer(name, fake_gpus):
    """Record of the rank of the job."""
    answer = fake_gpus.run(JOBS[name])
    assert "error" not in answer, answer.get("traceback", answer["error"])
    return answer


@each(JOBS)
def test_the_rank_steps_on_its_device(answer):
    first, second = answer["steps"]
    assert first["launches"] == second["launches"] != {}
    assert not first["skipped"]
    assert not second["skipped"]
    assert answer["faults"] == []


@each(JOBS)
def test_the_backends_kernels_serve(name, answer):
    borrowed = {operation for operation, kernel in answer["kernels"].items() if kernel == "reference"}
    if "fp8" in name:
        assert borrowed <= {"linear@output"}
        return
    of_experts = {"linear@router", "router", "moe_permute"} | ({"grouped_linear"} if "Hopper" not in name else set())
    assert borrowed <= ({"linear"} | of_experts if name in EXPERTS else {"linear"})


@each(MEGATRON)
def test_a_step_sends_what_its_layout_needs(name, answer):
    needed = expected.collectives(JOBS[name])
    for step in answer["steps"]:
        assert step["collectives"].keys() == needed.keys()
        for key, (calls, size) in needed.items():
            if key.endswith(expected.DATA):
                assert size <= step["collectives"][key][1] <= size * BUCKETS, key
            else:
                assert step["collectives"][key] == [calls, size], key


@each(EXPERTS)
def test_rows_go_to_experts_and_back(name, answer):
    for step in answer["steps"]:
        exchanged = {key: value for key, value in step["collectives"].items() if key.startswith("alltoall")}
        assert exchanged == expected.exchanges(JOBS[name])


@each(DEEPSPEED)
def test_zero_sends_gradients_and_parameters(name, answer):
    needed = expected.zero_bytes(JOBS[name])
    step = answer["steps"][-1]  # in the first one ZeRO-3 learns the order of the weights, and gathers some twice
    sent = {key: size for key, (_, size) in step["collectives"].items() if size > SCALARS}
    assert sent.keys() == needed.keys()
    for key, size in needed.items():
        # Biases and norms stay gathered under ZeRO-3: a thousandth of the parameters.
        assert 0.999 * size <= sent[key] <= size + SCALARS, key


@each([*MEGATRON, *EXPERTS])
def test_the_host_waits_once_a_step_in_fp16_and_never_in_bf16(name, answer):
    """Of experts on several ranks beside the sizes of what is exchanged, which a fake GPU does not read."""
    in_fp16 = expected.Place.of(JOBS[name]).recipe.precision.dtype == "fp16"
    for step in answer["steps"]:
        assert sum(step["waits"].values()) == (1 if in_fp16 else 0), step["waits"]


@each(DEEPSPEED)
def test_under_deepspeed_the_host_waits_no_more_often_than_it_did(name, answer):
    waits = answer["steps"][-1]["waits"]
    assert sum(waits.values()) <= figures.read()[name]["waits"], waits


@each(JOBS)
def test_an_evaluation_never_waits(answer):
    assert answer["evaluation"]["waits"] == {}


@each(JOBS)
def test_the_peak_of_memory_is_unchanged(name, answer):
    peak, figure = figures.of(name, answer)["peak_bytes"], figures.read()[name]["peak_bytes"]
    assert abs(peak - figure) <= figures.TOLERANCE * figure, (
        f"{peak} bytes instead of {figure}. If so meant: {figures.RENEW}"
    )


def test_there_are_figures_of_every_job():
    assert figures.read().keys() == JOBS.keys()


def test_all_jobs_are_either_in_every_test_or_in_the_full_one():
    assert not ALWAYS.keys() & FULL.keys()
