"""Offload to files: planned as host memory."""

from __future__ import annotations

from pretrain.recipe import make_recipe
from pretrain.tools.plan.plan import without_files
from tools.plan.made_plan import RECIPE

ZERO = ["parallel.pipeline_model_parallel_size=1", "engine.name=deepspeed", "engine.zero.stage=3"]
OPTIMIZER = "engine.zero.offload_optimizer={device: nvme, nvme_path: here, buffer_count: 5, cpu_adam: torch}"
WEIGHTS = "engine.zero.offload_param={device: nvme, nvme_path: here}"
THRESHOLD = "engine.zero.stage3_param_persistence_threshold=0"


def changed(*overrides):
    return without_files(make_recipe(RECIPE, [*ZERO, *overrides], source="tiny.yml"))


def test_what_goes_to_files_goes_to_host_memory_and_the_user_is_told():
    recipe, notices = changed(OPTIMIZER, WEIGHTS, THRESHOLD)
    zero = recipe.engine.zero
    assert (zero.offload_optimizer.device, zero.offload_param.device) == ("cpu", "cpu")
    assert (zero.offload_optimizer.cpu_adam, zero.offload_optimizer.nvme_path) == ("torch", None)
    assert (zero.stage, zero.stage3_param_persistence_threshold, recipe.source) == (3, 0, "tiny.yml")
    assert [notice.split(":")[0] for notice in notices] == [
        "engine.zero.offload_optimizer.device",
        "engine.zero.offload_param.device",
    ]


def test_only_files_are_replaced():
    recipe, notices = changed("engine.zero.offload_optimizer={device: cpu}")
    assert notices == []
    assert recipe == make_recipe(RECIPE, [*ZERO, "engine.zero.offload_optimizer={device: cpu}"])
