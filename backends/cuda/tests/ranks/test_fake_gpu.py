"""The gate of the fake GPUs finds faults: each one is injected into a small rank."""

from __future__ import annotations

import sys

import pytest
import torch

from fake_gpu.mutants import MUTANTS

pytestmark = [
    pytest.mark.xdist_group("fake GPUs"),
    pytest.mark.skipif(
        torch.version.cuda is not None or sys.platform != "linux",
        reason="fake GPUs are made of torch's CPU build on Linux",
    ),
]

JOB = {
    "recipe": "gpt2-345m.yml",
    "rank": 0,
    "world": 2,
    "micro_batches": 1,
    "vocab_size": 50257,
    "steps": 1,
    "set": ["model.num_layers=1", "model.hidden_size=256", "parallel.tensor_model_parallel_size=2"],
}

RAISED = {
    "missing argument": "missing 1 required positional argument: 'tile_columns'",
    "unknown argument": "tiles was specified but unrecognised",
    "list for a number": "failed to specialize argument of type: list",
    "grid of 70000 in y": "70000); y is from 1 to 65535",
    "empty grid": "x is from 1 to 2147483647",
    "tensor on the host": "seed is on cpu",
    "fp16 for a seed": "CompilationError",
    "tensors on two devices": "Expected all tensors to be on the same device",
    "nonzero": "DynamicOutputShapeException",
}

WAITS = {
    "item": "item in ",
    "bool": "item in ",
    "cpu": "copy between host and device in ",
    "from the host": "copy between host and device in ",
    "write by a mask": "write by a mask in ",
    "synchronize": "synchronize in ",
    "stream": "Stream.synchronize in ",
    "event": "Event.synchronize in ",
}


@pytest.fixture(scope="module")
def sound(fake_gpus):
    return fake_gpus.run(JOB)["steps"][-1]


def step_with(fake_gpus, mutant, **job):
    return fake_gpus.run(JOB | job | {"mutant": mutant})


@pytest.mark.full
@pytest.mark.parametrize(("mutant", "told"), RAISED.items())
def test_operations_that_a_gpu_could_not_do_are_refused(mutant, told, fake_gpus):
    assert told in step_with(fake_gpus, mutant, compile=mutant == "fp16 for a seed")["error"]


@pytest.mark.full
@pytest.mark.parametrize(("mutant", "told"), WAITS.items())
def test_a_wait_of_the_host_is_counted(mutant, told, fake_gpus, sound):
    step = step_with(fake_gpus, mutant)["steps"][-1]
    (new,) = step["waits"].keys() - sound["waits"].keys()
    assert new.startswith(told)
    assert sum(step["waits"].values()) > sum(sound["waits"].values())


@pytest.mark.full
def test_one_collective_more_is_seen(fake_gpus, sound):
    step = step_with(fake_gpus, "all-reduce")["steps"][-1]
    key = "allreduce TENSOR_MODEL_PARALLEL_GROUP"
    calls, size = sound["collectives"][key]
    assert step["collectives"][key] == [calls + 2, size + 2 * 1024 * 256 * 2]  # two residuals in the one layer


@pytest.mark.full
def test_a_collective_of_a_tensor_on_the_host_is_a_fault(fake_gpus):
    assert "on cpu" in step_with(fake_gpus, "all-reduce on the host")["faults"][0]


@pytest.mark.full
def test_a_storage_that_is_kept_is_seen(fake_gpus, sound):
    step = step_with(fake_gpus, "storage that is kept")["steps"][-1]
    assert step["peak"] > 1.1 * sound["peak"]


def test_every_fault_has_a_test():
    assert MUTANTS.keys() == {*RAISED, *WAITS, "all-reduce", "all-reduce on the host", "storage that is kept"}
