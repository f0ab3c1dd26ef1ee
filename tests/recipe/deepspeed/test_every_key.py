"""Every key of a file is translated or is an error, with any value."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import RecipeError
from pretrain.recipe import make_recipe, to_yaml
from pretrain.recipe.deepspeed.key_tables import BLOCKS, REFUSED, REMOVED, SAME, SETTLED, SWITCHED, UNREAD
from pretrain.recipe.deepspeed.translate import FUNCTIONS, KEYS
from pretrain.recipe.recipe import inner_section, keys_of_recipe, walk
from pretrain.recipe.sections.engine import ZeroSection
from recipe.smallest import SMALLEST

COUNT = st.integers(1, 10**12) | st.sampled_from([2e8, 5e8])
PATH = st.just("swap")
SWITCH = st.booleans()

STAGES = {
    "contiguous_gradients": ((1, 2, 3), SWITCH),
    "reduce_scatter": ((1, 2, 3), SWITCH),
    "reduce_bucket_size": ((1, 2, 3), COUNT),
    "allgather_bucket_size": ((1, 2), st.integers(1, 10**9).map(lambda half: 2 * half)),
    "overlap_comm": ((1, 2, 3), SWITCH),
    "round_robin_gradients": ((1, 2), SWITCH),
    "sub_group_size": ((3,), COUNT),
    "stage3_prefetch_bucket_size": ((3,), COUNT),
    "stage3_param_persistence_threshold": ((3,), COUNT),
    "stage3_model_persistence_threshold": ((3,), COUNT),
    "stage3_max_live_parameters": ((3,), COUNT),
    "stage3_max_reuse_distance": ((3,), COUNT),
}

FEWEST_IN_FILES = 1 << 18
"""Elements of fp32 that make the smallest weight that is kept in files (checks/deepspeed.py)."""
BUFFERS = st.integers(12, 10**9)
"""Enough for what is read and written ahead."""

OFFLOAD_OPTIMIZER = {
    "cpu": st.fixed_dictionaries({"device": st.just("cpu")}, optional={"pin_memory": SWITCH}),
    "nvme": st.fixed_dictionaries(
        {"device": st.just("nvme"), "nvme_path": PATH, "buffer_count": BUFFERS},
        optional={"pin_memory": SWITCH, "pipeline_read": SWITCH, "pipeline_write": SWITCH},
    ),
}
OFFLOAD_PARAM = {
    "cpu": OFFLOAD_OPTIMIZER["cpu"],
    "nvme": st.fixed_dictionaries(
        {"device": st.just("nvme"), "nvme_path": PATH},
        optional={"pin_memory": SWITCH, "buffer_count": COUNT, "buffer_size": COUNT, "max_in_cpu": COUNT},
    ),
}


@st.composite
def zero_sections(draw):
    """Sections that are valid: at each stage the keys that it reads."""
    stage = draw(st.integers(0, 3))
    optional = {key: values for key, (stages, values) in STAGES.items() if stage in stages}
    if stage > 0:
        optional["offload_optimizer"] = OFFLOAD_OPTIMIZER["cpu"]
        optional["contiguous_gradients"] = st.just(True)
    if stage == 3:
        optional["offload_optimizer"] |= OFFLOAD_OPTIMIZER["nvme"]
        optional["offload_param"] = OFFLOAD_PARAM["cpu"] | OFFLOAD_PARAM["nvme"]
    section = {"stage": stage, **draw(st.fixed_dictionaries({}, optional=optional))}
    if section.get("offload_param", {}).get("device") == "nvme" and "stage3_param_persistence_threshold" in section:
        section["stage3_param_persistence_threshold"] %= FEWEST_IN_FILES
    return section


def recipe_of(engine, config):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "ds.json")
        file.write_text(json.dumps(config))
        return make_recipe({**SMALLEST, "engine": {**engine, "name": "deepspeed", "deepspeed_config": str(file)}})


@given(zero_sections())
def test_a_zero_section_as_json_is_the_same_section(section):
    written = make_recipe({**SMALLEST, "engine": {"name": "deepspeed", "zero": section}})
    assert recipe_of({}, {"zero_optimization": section}) == written
    assert recipe_of({"zero": section}, {"zero_optimization": section}) == written


@given(zero_sections())
def test_the_resolved_recipe_can_be_written_as_json(section):
    recipe = make_recipe({**SMALLEST, "engine": {"name": "deepspeed", "zero": section}})
    resolved = yaml.safe_load(to_yaml(recipe))["engine"]["zero"]
    resolved.get("offload_optimizer", {}).pop("cpu_adam", None)
    assert recipe_of({}, {"zero_optimization": resolved}) == recipe


def nested(path, value):
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def merged(*configs):
    result = {}
    for config in configs:
        for key, value in config.items():
            both = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both else value
    return result


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["auto", "fp32", "cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
WORDS = sorted({*KEYS, *SWITCHED, *BLOCKS, *REMOVED})


@pytest.mark.full
@given(st.lists(st.tuples(st.sampled_from(WORDS) | st.text(max_size=8), ANYTHING), max_size=8))
def test_a_file_gives_a_recipe_or_an_error_that_names_it(pairs):
    config, refused = merged(*(nested(path, value) for path, value in pairs)), ""
    try:
        recipe = recipe_of({}, config)
    except RecipeError as error:
        refused = str(error)
    else:
        assert make_recipe(yaml.safe_load(to_yaml(recipe))) == recipe
    assert not refused or "ds.json" in refused.encode().decode()
    assert len(refused.splitlines()) <= 10


@pytest.mark.parametrize("path", WORDS)
def test_a_key_with_an_unexpected_value_is_an_error(path):
    config = merged({"optimizer": {"type": "AdamW"}}, nested(path, "strange"))
    if path == "steps_per_print":
        assert recipe_of({}, config).notices
        return
    with pytest.raises(RecipeError, match=path.rpartition(".")[2]):
        recipe_of({}, config)


@pytest.mark.parametrize("path", sorted(KEYS))
def test_auto_and_null_count_as_not_given(path):
    plain = recipe_of({}, {})
    for value in ("auto", None):
        recipe = recipe_of({}, nested(path, value))
        assert (recipe, recipe.notices) == (plain, ())


@pytest.mark.parametrize("path", sorted(SETTLED))
def test_keys_that_match_fixed_behaviour_change_nothing(path):
    kind = {"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.01}}} if "params" in path else {}
    recipe = recipe_of({}, merged(kind, nested(path, SETTLED[path])))
    assert recipe == recipe_of({}, kind)
    assert any(f"these match pretrain's fixed behaviour: {path}: " in notice for notice in recipe.notices)


def test_a_key_is_in_one_table():
    tables = [SAME, FUNCTIONS, SETTLED, REFUSED, UNREAD, SWITCHED, BLOCKS, REMOVED]
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert set(SAME.values()) <= set(keys_of_recipe())


DEEPSPEED = """
import json
from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
from deepspeed.runtime.zero import config, offload_config
classes = {
    "zero_optimization": config.DeepSpeedZeroConfig,
    "zero_optimization.offload_optimizer": offload_config.DeepSpeedZeroOffloadOptimizerConfig,
    "zero_optimization.offload_param": offload_config.DeepSpeedZeroOffloadParamConfig,
    "fp16": DeepSpeedFP16Config,
    "bf16": DeepSpeedBF16Config,
}
print(json.dumps({
    f"{prefix}.{name}": field.default if isinstance(field.default, (bool, int, float, str)) else None
    for prefix, of in classes.items() for key, field in of.model_fields.items() for name in {key, field.alias or key}
}))
"""
SET_BY_THE_ENGINE = {"zero_optimization.memory_efficient_linear": False}
"""Values that differ from DeepSpeed's defaults."""


@pytest.mark.slow
def test_every_key_of_the_installed_deepspeed_is_known_with_its_default():
    environment = {**os.environ, "DS_ACCELERATOR": "cpu"}
    told = subprocess.run(
        [sys.executable, "-c", DEEPSPEED], env=environment, check=True, capture_output=True, text=True
    )
    defaults = json.loads(told.stdout.splitlines()[-1])
    objects = {"zero_optimization.offload_optimizer", "zero_optimization.offload_param"}
    assert set(defaults) - objects <= {*KEYS, *BLOCKS}
    assert {key: SETTLED[key] for key in SETTLED if key in defaults} == {
        key: default for key, default in defaults.items() if key in SETTLED
    } | SET_BY_THE_ENGINE
    ours = {
        path: field.default
        for path, field in walk(ZeroSection, "zero_optimization.")
        if inner_section(field) is None and path in defaults
    }
    no_limit = {"zero_optimization.stage3_model_persistence_threshold": None}
    assert ours == {path: defaults[path] for path in ours} | no_limit
