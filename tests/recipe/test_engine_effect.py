"""Keys that only one engine reads, and keys that DeepSpeed reads at some ZeRO stages only."""

from __future__ import annotations

import pytest
import yaml

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe, to_yaml
from pretrain.recipe.checks.effect import ENGINE_RULES as RULES
from pretrain.recipe.recipe import inner_section, walk
from pretrain.recipe.sections.engine import ZeroSection
from recipe.smallest import SMALLEST

STAGES_OF = {
    "contiguous_gradients": {1, 2, 3},
    "reduce_scatter": {1, 2, 3},
    "reduce_bucket_size": {1, 2, 3},
    "allgather_bucket_size": {1, 2},
    "overlap_comm": {1, 2, 3},
    "round_robin_gradients": {1, 2},
    "sub_group_size": {3},
    "stage3_prefetch_bucket_size": {3},
    "stage3_param_persistence_threshold": {3},
    "stage3_model_persistence_threshold": {3},
    "stage3_max_live_parameters": {3},
    "stage3_max_reuse_distance": {3},
    "offload_optimizer": {1, 2, 3},
    "offload_param": {3},
}
"""At which stages DeepSpeed 0.19.8 reads each key."""

VALUES = {
    "contiguous_gradients": True,
    "reduce_scatter": True,
    "overlap_comm": True,
    "round_robin_gradients": True,
    "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "cpu"},
}
"""Values of keys that do not accept 2."""

DEVICES_OF = {
    "offload_optimizer": {
        "pin_memory": {"cpu", "nvme"},
        "cpu_adam": {"cpu", "nvme"},
        "nvme_path": {"nvme"},
        "buffer_count": {"nvme"},
        "pipeline_read": {"nvme"},
        "pipeline_write": {"nvme"},
    },
    "offload_param": {
        "pin_memory": {"cpu", "nvme"},
        "nvme_path": {"nvme"},
        "buffer_count": {"nvme"},
        "buffer_size": {"nvme"},
        "max_in_cpu": {"nvme"},
    },
}
"""For which devices each key of a section has an effect."""

OF_MEGATRON = {
    "parallel.use_distributed_optimizer": "(with deepspeed, engine.zero.stage: 1 does this).",
    "parallel.overlap_grad_reduce": "(with deepspeed, engine.zero.overlap_comm: true does this).",
    "parallel.overlap_param_gather": "(deepspeed gathers ahead by itself, at engine.zero.stage: 3).",
    "logging.log_num_zeros_in_grad": "engine.name: megatron.",
}

BF16 = {"precision": {"dtype": "bf16"}}


def deepspeed(zero, **more):
    return {**SMALLEST, **more, "engine": {"name": "deepspeed", "zero": zero}}


def refusal_of(data, *overrides):
    """Return the lines of a refusal; none if the recipe is taken."""
    try:
        make_recipe(data, overrides)
    except RecipeError as error:
        return str(error).splitlines()
    return []


def idle(key, lines):
    return any(f" engine.zero.{key}: no effect here; it needs " in f" {line}" for line in lines)


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("key", sorted(STAGES_OF))
def test_a_key_is_taken_at_the_stages_that_read_it(key, stage):
    lines = refusal_of(deepspeed({"stage": stage, key: VALUES.get(key, 2)}))
    assert idle(key, lines) == (stage not in STAGES_OF[key])
    assert len(lines) == (stage not in STAGES_OF[key])


def test_every_key_of_zero_but_the_stage_is_read_at_some_stage():
    assert {*STAGES_OF, "stage"} == set(ZeroSection.model_fields)


@pytest.mark.parametrize("device", ["none", "cpu", "nvme"])
@pytest.mark.parametrize(("section", "key"), [(section, key) for section, keys in DEVICES_OF.items() for key in keys])
def test_a_key_of_offload_is_taken_for_the_devices_that_read_it(section, key, device):
    value = {"cpu_adam": "torch", "nvme_path": "swap", "buffer_count": 2, "buffer_size": 2, "max_in_cpu": 2}.get(
        key, True
    )
    lines = refusal_of(deepspeed({"stage": 3, section: {"device": device, "nvme_path": "swap", key: value}}))
    assert idle(f"{section}.{key}", lines) == (device not in DEVICES_OF[section][key])


@pytest.mark.parametrize(("optimizer", "param", "taken"), [("nvme", "nvme", True), ("nvme", "cpu", False)])
def test_a_fast_start_needs_everything_in_files(optimizer, param, taken):
    offload = {"device": optimizer, "nvme_path": "swap", "fast_init": True}
    lines = refusal_of(deepspeed({"stage": 3, "offload_optimizer": offload, "offload_param": {"device": param}}))
    assert idle("offload_optimizer.fast_init", lines) != taken


@pytest.mark.parametrize("section", sorted(DEVICES_OF))
def test_every_key_of_offload_has_its_devices(section):
    inner = inner_section(ZeroSection.model_fields[section])
    assert {*DEVICES_OF[section], "device", "fast_init"} == {*inner.model_fields, "fast_init"}


@pytest.mark.parametrize("key", ["contiguous_gradients", "reduce_bucket_size", "overlap_comm", "round_robin_gradients"])
def test_fp32_gradients_of_bf16_leave_stage_1_without_buckets(key):
    zero = {"stage": 1, key: VALUES.get(key, 2)}
    assert idle(key, refusal_of(deepspeed(zero, **BF16)))
    assert not refusal_of(deepspeed(zero, precision={"dtype": "bf16", "grad_reduce_in_fp32": False}))
    assert not refusal_of(deepspeed({**zero, "offload_optimizer": {"device": "cpu"}}, **BF16))
    assert not refusal_of(deepspeed({**zero, "stage": 2}, **BF16))


@pytest.mark.parametrize("key", sorted(OF_MEGATRON))
def test_a_key_of_megatrons_engine_names_what_deepspeed_has_instead(key):
    section, name = key.split(".")
    lines = refusal_of(deepspeed({"stage": 1}, **{section: {name: True}}))
    assert any(line.startswith(f"recipe: {key}: no effect") and line.endswith(OF_MEGATRON[key]) for line in lines)


def test_zero_without_deepspeed_is_one_mistake(smallest):
    smallest["engine"] = {"zero": {"stage": 0, "offload_param": {"device": "cpu"}, "overlap_comm": True}}
    assert refusal_of(smallest) == ["recipe: engine.zero: no effect here; it needs engine.name: deepspeed."]


def test_offload_that_is_idle_is_one_mistake():
    offload = {"device": "cpu", "pin_memory": True, "nvme_path": "swap"}
    assert refusal_of(deepspeed({"stage": 2, "offload_param": offload})) == [
        "recipe: engine.zero.offload_param: no effect here; it needs engine.zero.stage: 3."
    ]


def test_the_hosts_adam_replaces_the_negotiated_one():
    data = deepspeed({"stage": 2, "offload_optimizer": {"device": "cpu"}})
    assert refusal_of(data, "kernels.optimizer=fused") == [
        (
            "--set kernels.optimizer=fused: kernels.optimizer: no effect here; it needs "
            "engine.zero.offload_optimizer.device: none (on the host engine.zero.offload_optimizer.cpu_adam steps)."
        )
    ]


def test_keys_that_are_switched_off_may_stay(smallest):
    off = {"stage": 0, "overlap_comm": False, "offload_param": {"device": "none", "pin_memory": False}}
    assert not refusal_of(deepspeed(off))
    smallest["engine"] = {"zero": off}
    assert to_yaml(make_recipe(smallest)) == to_yaml(make_recipe(SMALLEST))


def test_an_override_of_the_engine_drops_zero():
    data = deepspeed({"stage": 3, "offload_param": {"device": "cpu"}})
    assert make_recipe(data, ["engine.name=megatron"]) == make_recipe(SMALLEST)
    assert make_recipe(data, ["engine={name: megatron}"]) == make_recipe(SMALLEST)


def test_an_override_of_the_stage_drops_what_it_leaves_idle():
    data = deepspeed({"stage": 3, "sub_group_size": 2, "offload_param": {"device": "nvme", "nvme_path": "a"}})
    assert make_recipe(data, ["engine.zero.stage=2"]) == make_recipe(deepspeed({"stage": 2}))


def test_an_override_inside_of_zero_is_not_dropped():
    lines = refusal_of(deepspeed({"stage": 3}), "engine.name=megatron", "engine.zero.stage=1")
    assert lines == ["--set engine.zero.stage=1: engine.zero: no effect here; it needs engine.name: deepspeed."]


def test_an_override_of_the_engine_drops_megatrons_overlap(smallest):
    smallest["parallel"] = {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
    }
    recipe = make_recipe(smallest, ["engine.name=deepspeed"])
    assert recipe == make_recipe(SMALLEST, ["engine.name=deepspeed"])


def test_the_dump_holds_what_the_stage_reads():
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert yaml.safe_load(to_yaml(make_recipe(deepspeed(zero))))["engine"] == {
        "name": "deepspeed",
        "zero": {
            "stage": 2,
            "contiguous_gradients": True,
            "reduce_scatter": True,
            "reduce_bucket_size": 500_000_000,
            "allgather_bucket_size": 500_000_000,
            "round_robin_gradients": False,
            "offload_optimizer": {"device": "cpu", "pin_memory": True, "cpu_adam": "deepspeed"},
        },
    }
    assert yaml.safe_load(to_yaml(make_recipe(SMALLEST)))["engine"] == {"name": "megatron"}


def test_rules_cover_every_key_of_zero_but_the_stage_and_the_devices():
    ruled = {key for rule in RULES for key in rule.keys}
    leaves = [path for path, field in walk(ZeroSection, "engine.zero.") if inner_section(field) is None]
    assert [path for path in leaves if path not in ruled] == [
        "engine.zero.stage",
        "engine.zero.offload_optimizer.device",
        "engine.zero.offload_param.device",
    ]
