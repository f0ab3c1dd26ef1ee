"""Memory for what ZeRO-3 reads from files: too little is an error message, where DeepSpeed would abort."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pretrain.engine.deepspeed.offload import locked_memory, swapping

from engine import tiny
from pretrain.errors import RecipeError

OPTIMIZER = "engine.zero.offload_optimizer"
PARAM = "engine.zero.offload_param"
FILES = (
    "engine={name: deepspeed, zero: {stage: 3}}",
    f"{OPTIMIZER}.device=nvme",
    f"{OPTIMIZER}.nvme_path=nvme",
    f"{PARAM}.device=nvme",
    f"{PARAM}.nvme_path=nvme",
    f"{PARAM}.buffer_size=300",
)


def groups(*sizes):
    """Return parameter groups of weights of which this rank has so many elements."""
    return [{"params": [SimpleNamespace(ds_tensor=SimpleNamespace(ds_numel=size)) for size in sizes]}]


def refused(sizes, *overrides):
    with pytest.raises(RecipeError) as caught:
        swapping.require_room(tiny.tiny(*FILES, *overrides), groups(*sizes))
    return str(caught.value)


@pytest.fixture
def lockable(monkeypatch):
    """Let the system lock so many bytes; note what was asked."""
    asked = []

    def put(limit):
        monkeypatch.setattr(swapping, "can_lock", lambda size: asked.append(size) or size <= limit)
        return asked

    return put


def test_fast_init_needs_buffers_that_hold_a_sub_group():
    """A sub-group ends with the weight that reaches `sub_group_size`."""
    overrides = ("engine.zero.sub_group_size=200", f"{OPTIMIZER}.fast_init=true")
    assert refused([150, 151, 10], *overrides) == (
        f"{PARAM}.buffer_size: 300 is too small for {OPTIMIZER}.fast_init, which reads a sub-group of 301 elements "
        f"into a buffer.\nGive at least that, or a smaller engine.zero.sub_group_size, or {OPTIMIZER}.fast_init: false."
    )
    swapping.require_room(tiny.tiny(*FILES, *overrides), groups(150, 150, 10, 250))
    swapping.require_room(tiny.tiny(*FILES, overrides[0]), groups(150, 151))


def test_buffers_of_the_state_are_as_large_as_the_largest_sub_group(lockable):
    asked = lockable(4 * 4 * 400)
    recipe = tiny.tiny(*FILES, "engine.zero.sub_group_size=300")
    swapping.require_room(recipe, [*groups(100, 100, 200), *groups(50)])
    assert asked == [4 * 4 * 400]


def test_memory_that_may_not_be_locked_is_refused(lockable):
    lockable(2**20)
    assert refused([2**20]) == (
        f"{OPTIMIZER}: nvme locks 16 MiB of memory, of each rank, which the system refuses (ulimit -l).\n"
        f"Raise the limit (ulimit -l unlimited; docker run --ulimit memlock=-1), or lower {OPTIMIZER}.buffer_count or "
        "engine.zero.sub_group_size."
    )


def test_buffers_of_weights_are_looked_at_before_the_model_is_built(lockable, monkeypatch, tmp_path):
    asked = lockable(2**20)
    monkeypatch.setattr(swapping, "require_async_io", lambda *_: None)
    path = (f"{OPTIMIZER}.nvme_path={tmp_path}", f"{PARAM}.nvme_path={tmp_path}", "precision.dtype=bf16")
    monkeypatch.setattr("pretrain.engine.build.build", lambda *_, **__: pytest.fail("a model was built"))
    recipe = tiny.tiny(*FILES, *path, f"{PARAM}.buffer_size={2**20}")
    message = rf"{PARAM}: nvme locks 10 MiB .*\n.*buffer_count or buffer_size\."
    with pytest.raises(RecipeError, match=message), tiny.engine_of(recipe):
        pass
    assert asked == [5 * 2 * 2**20]
    assert list(tmp_path.iterdir()) == []


def test_the_system_says_what_may_be_locked():
    assert locked_memory.can_lock(0)
    assert locked_memory.can_lock(4096)
    assert not locked_memory.can_lock(2**60)


class Model:
    """Weights, of which some are in files."""

    def __init__(self, *locations):
        self.weights = [SimpleNamespace(ds_tensor=SimpleNamespace(final_location=location)) for location in locations]

    def parameters(self):
        return self.weights


class Optimizer:
    """Sub-groups, of which some are in files."""

    def __init__(self, *in_files):
        self.fp32_partitioned_groups_flat = in_files

    def _swappable_optimizer_subgroup(self, number):
        return self.fp32_partitioned_groups_flat[number]


@pytest.mark.parametrize(
    ("model", "optimizer", "told"),
    [
        (Model("not-nvme", "nvme"), Optimizer(False, True), []),
        (
            Model("not-nvme", None),
            Optimizer(False, False),
            [
                f"{OPTIMIZER}: nothing is in files; every sub-group has less than 1 MiB for this rank",
                (
                    f"{PARAM}: no weight is in a file; they fit into max_in_cpu: 1000000000 elements of host memory, "
                    "or have less than 1 MiB each"
                ),
            ],
        ),
    ],
)
def test_the_user_is_notified_if_nothing_is_in_files(model, optimizer, told):
    lines = []
    swapping.report_in_memory(tiny.tiny(*FILES), model, optimizer, lines.append)
    assert lines == told
