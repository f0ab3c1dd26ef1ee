"""No key of a recipe is forgotten: each changes the arguments, or is told to have no flag."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from pretrain.errors import RecipeError
from pretrain.recipe.checks.effect import without_effect
from pretrain.recipe.load import make_recipe
from pretrain.recipe.recipe import Recipe, inner_section, keys_of_recipe, walk
from pretrain.tools.migrate.meaning import Mapped
from pretrain.tools.migrate.megatron.meanings import meaning_of
from pretrain.tools.migrate.to_megatron.arguments import FUNCTIONS, WITHOUT_FLAG, arguments_of
from pretrain.tools.migrate.to_megatron.flags import TARGET, single_flags
from tools.migrate.to_megatron.written import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic.fields import FieldInfo

BLENDS = ("data.blend", "data.train_data_path", "data.valid_data_path", "data.test_data_path")
FIELDS = {key: field for key, field in walk(Recipe) if inner_section(field) is None or key in BLENDS}

CIRCUMSTANCES = (
    ("model.seq_length=32",),
    ("data={train_data_path: one, valid_data_path: two}",),
    ("data.corpus={source: python_stdlib}", "tokenizer={type: huggingface, file: a/tokenizer.json, vocab_size: 400}"),
    (
        *("model.position_embedding_type=rope", "model.use_rope_scaling=true", "model.add_bias_linear=false"),
        "model.qk_layernorm=true",
    ),
    (
        *("model.position_embedding_type=rope", "model.use_rope_scaling=true", "model.rope_scaling_type=yarn"),
        "model.yarn_beta_slow=2",
    ),
    (
        *("model.num_experts=4", "model.add_bias_linear=false", "model.moe_router_load_balancing_type=aux_loss"),
        *("model.moe_shared_expert_intermediate_size=8", "parallel.tensor_model_parallel_size=2"),
        *("parallel.sequence_parallel=true", "model.moe_expert_capacity_factor=1.5"),
    ),
    (
        *("model.num_experts=16", "model.add_bias_linear=false", "model.moe_router_score_function=sigmoid"),
        *("model.moe_router_num_groups=2", "model.moe_router_group_topk=1", "model.moe_router_enable_expert_bias=true"),
    ),
    ("precision.dtype=fp16",),
    ("precision.dtype=bf16",),
    ("precision.fp8=tensorwise",),
    ("train.train_iters=null", "train.train_samples=900", "train.manual_gc=true"),
    ("schedule={lr_decay_style: WSD, lr_wsd_decay_iters: 5}",),
    (
        "train.train_iters=null",
        "train.train_samples=900",
        "schedule={lr_decay_style: WSD, lr_wsd_decay_samples: 5}",
    ),
    (
        "parallel={tensor_model_parallel_size: 2, use_distributed_optimizer: true, overlap_grad_reduce: true}",
        "recompute.granularity=full",
    ),
    ("parallel={pipeline_model_parallel_size: 4, virtual_pipeline_model_parallel_size: 2}",),
    ("parallel.pipeline_model_parallel_size=2",),
    ("engine={name: deepspeed, zero: {stage: 2}}",),
    ("engine={name: deepspeed, zero: {stage: 3, stage3_param_persistence_threshold: 0}}",),
    (
        "engine={name: deepspeed, zero: {stage: 3, stage3_param_persistence_threshold: 0}}",
        "engine.zero.offload_optimizer={device: nvme, nvme_path: a, buffer_count: 12}",
        "engine.zero.offload_param={device: nvme, nvme_path: a}",
    ),
    ("kernels.attention=triangle",),
    ("model.hidden_dropout=0", "model.attention_dropout=0"),
    ("checkpoint={save: out, save_interval: 5, load: in}",),
    ("checkpoint={save: out, local_interval: 5, local_dir: copies}",),
    ("evaluation.prompt=once",),
    ("evaluation.tasks=[words]",),
    ("logging.loggers=[tensorboard]",),
    ("logging={loggers: [wandb], wandb_project: p}",),
    ("logging.loggers=[mlflow,comet]",),
    ("profile.steps=3",),
    ("optimizer.adam_beta2=0.95",),
    ("optimizer.decoupled_lr=1",),
    ("optimizer.name=muon",),
    ("data.index=native",),
    ("train.loss_spike={threshold: 2, action: rollback}", "checkpoint={save: out, save_interval: 5}"),
)
"""Overrides of the small recipe: each key has an effect in one of them."""

BEFORE = {circumstance: make_recipe(SMALL, circumstance) for circumstance in CIRCUMSTANCES}

VALUES = (
    *(
        True,
        False,
        1,
        2,
        3,
        4,
        16,
        300,
        0.5,
        2.5,
        1e-4,
        "other",
        "skip",
        "cpu",
        "rope",
        "sigmoid",
        "seq_aux_loss",
        "RMSNorm",
        "swiglu",
        "wang_init",
        "bf16",
    ),
    *("cosine", "full", "block", "native", "forbid", "layer", "deepspeed", "torch", "gpt2", "bytes", "adam", "1,1,1"),
    *("tokens", "position", "dynamic", "shape_scaling", "rowwise"),
    *(
        ["words"],
        [3, 5],
        [2, 2, 100],
        [{"weight": 1, "path": "other"}],
        {"gradient_clipping": 0.5},
        ["wandb"],
        ["tensorboard"],
    ),
)
"""Values of which every key takes some."""


def test_answers_are_about_keys_that_exist():
    """A renamed key needs its answer renamed."""
    assert {*FUNCTIONS, *WITHOUT_FLAG, *single_flags()} <= {*keys_of_recipe()}
    assert WITHOUT_FLAG.keys().isdisjoint(FUNCTIONS.keys() | single_flags().keys())


def test_single_flags_are_those_that_give_the_key_in_the_other_direction():
    """The reverse of a meaning, and not of another's."""
    for key, name in single_flags().items():
        meaning = meaning_of(name, TARGET)
        assert isinstance(meaning, Mapped)
        assert meaning.key == key


# Options have an effect where another distribution is installed.
OTHERS = (*(f"{key}." for key in BLENDS), "data.corpus.", "optimizer.options", "logging.logger_options")


@pytest.mark.parametrize("key", [key for key in FIELDS if not key.startswith(OTHERS)])
def test_a_key_changes_the_arguments_or_is_left_out_by_name(key: str):
    """Of the values that the key can have, in circumstances in which it has an effect."""
    assert any(_differ(before, after) for before, after in _changed(key)), f"{key} needs an answer"


def _changed(key: str) -> Iterator[tuple[Recipe, Recipe]]:
    """Yield recipes before and after another value of the key alone."""
    values = [value for value in VALUES if _is_of_type(value, FIELDS[key])]
    for circumstance, before in BEFORE.items():
        for value in values if _has_effect(key, before) else []:
            overrides = [*circumstance, f"{key}={json.dumps(value)}"]
            overrides += ["data.path=null"] * (key == "data.blend") + ["data.blend=null"] * (key == "data.path")
            try:
                after = make_recipe(SMALL, overrides)
            except RecipeError:
                continue
            if after != before:
                yield before, after


def _has_effect(key: str, recipe: Recipe) -> bool:
    return not any(f"{key}.".startswith(f"{idle}.") for idle in without_effect(recipe))


def _is_of_type(value: object, field: FieldInfo) -> bool:
    try:
        TypeAdapter(Annotated[field.annotation, None, *field.metadata]).validate_python(value)
    except ValidationError:
        return False
    return True


def _differ(before: Recipe, after: Recipe) -> bool:
    one, other = arguments_of(before), arguments_of(after)
    return (one.words, one.left_out) != (other.words, other.left_out)
