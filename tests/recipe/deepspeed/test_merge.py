"""A DeepSpeed file and the recipe that names it must not contradict one another."""

from __future__ import annotations

import pytest

from pretrain.errors import RecipeError
from pretrain.recipe import lay_out, load_recipe, make_recipe, to_yaml
from recipe.smallest import SMALLEST

STAGE_1 = {"zero_optimization": {"stage": 1}}


def test_both_places_and_both_values_are_named(refused):
    assert refused(STAGE_1, engine={"zero": {"stage": 2}}) == [
        (
            "ds.json:3: zero_optimization.stage: 1 means engine.zero.stage: 1, but recipe.yml:20 gives 2. "
            "Change one, or delete it here."
        )
    ]


def test_an_override_has_a_place_too(refused):
    assert refused(STAGE_1, "engine.zero.stage=2") == [
        (
            "ds.json:3: zero_optimization.stage: 1 means engine.zero.stage: 1, but --set engine.zero.stage=2 gives 2. "
            "Change one, or delete it here."
        )
    ]


@pytest.mark.parametrize(
    ("config", "more", "text"),
    [
        (
            {"fp16": {"enabled": True}},
            {"precision": {"dtype": "bf16"}},
            "ds.json:3: fp16.enabled: true means precision.dtype: fp16, but recipe.yml:17 gives bf16. ",
        ),
        (
            {"fp16": {"enabled": False}},
            {"precision": {"dtype": "fp16"}},
            "ds.json:3: fp16.enabled: false means no precision.dtype: fp16, but recipe.yml:17 gives fp16. ",
        ),
        (
            {"fp16": {"enabled": True, "loss_scale": 0}},
            {"precision": {"loss_scale": 128}},
            "ds.json:4: fp16.loss_scale: 0 means no precision.loss_scale, but recipe.yml:17 gives 128. ",
        ),
        (
            {"fp16": {"enabled": True}, "bf16": {"enabled": True}},
            {},
            "ds.json:6: bf16.enabled: true means precision.dtype: bf16, but ds.json:3: fp16.enabled gives fp16. ",
        ),
        (
            {"fp16": {"enabled": False}, "data_types": {"param_dtype": "fp16"}},
            {},
            "ds.json:3: fp16.enabled: false means no precision.dtype: fp16, but ds.json:6: data_types.param_dtype",
        ),
        (
            {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp16"}},
            {},
            "ds.json:6: data_types.grad_accum_dtype: fp16 means precision.dtype: fp16, but ds.json:3: bf16.enabled ",
        ),
        (
            {"optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.95]}}},
            {"optimizer": {"name": "adam", "adam_beta2": 0.99}},
            "ds.json:5: optimizer.params.betas: [0.9, 0.95] means optimizer.adam_beta2: 0.95, but recipe.yml:",
        ),
        (
            {"gradient_clipping": True},
            {"optimizer": {"clip_grad": 1.0}},
            "ds.json:2: gradient_clipping: true means optimizer.clip_grad: true, but recipe.yml:16 gives 1.0. ",
        ),
        (
            {"zero_optimization": {"stage": 3, "prefetch_bucket_size": 1, "stage3_prefetch_bucket_size": 2e8}},
            {},
            (
                "ds.json:5: zero_optimization.stage3_prefetch_bucket_size: 2e+08 means "
                "engine.zero.stage3_prefetch_bucket_size: 200000000, but ds.json:4: "
                "zero_optimization.prefetch_bucket_size gives 1. "
            ),
        ),
    ],
)
def test_two_spellings_of_one_key_must_agree(refused, config, more, text):
    assert any(line.startswith(text) for line in refused(config, **more))


@pytest.mark.parametrize("written", [2e8, 200_000_000, "2e8", "200_000_000"])
def test_the_same_value_in_both_is_fine(load, written):
    zero = {"stage": 1, "reduce_bucket_size": written}
    assert load({"zero_optimization": {"stage": 1, "reduce_bucket_size": 2e8}}, engine={"zero": zero}).notices == (
        "ds.json: these were read as whole numbers: zero_optimization.reduce_bucket_size: 200000000.",
    )


def test_an_override_to_the_same_value_is_fine(load):
    assert load(STAGE_1, "engine.zero.stage=1").engine.zero.stage == 1


def test_an_override_that_needs_no_such_key_drops_it(load):
    """An override drops them like keys of the recipe: for example with a constant learning rate."""
    config = {"fp16": {"enabled": True, "loss_scale_window": 500}, **STAGE_1}
    assert "loss_scale_window" not in to_yaml(load(config, "precision.loss_scale=128"))


def test_a_section_that_is_not_a_mapping_is_the_problem(refused):
    assert refused(STAGE_1, "engine.zero=3") == [
        "--set engine.zero=3: engine.zero: 3 is not a section with keys.",
    ]


def test_without_deepspeed_the_file_is_not_read(load, smallest, tmp_path):
    smallest["engine"] = {"deepspeed_config": "absent.json"}
    with pytest.raises(
        RecipeError, match=r"engine.deepspeed_config: no effect here; it needs engine.name: deepspeed\."
    ):
        make_recipe(smallest)
    assert load("no JSON", "engine.name=megatron") == make_recipe(SMALLEST)


def test_without_deepspeed_an_object_is_not_read_either(smallest):
    smallest["engine"] = {"deepspeed_config": {"zero_optimization": {"stage": 1}}}
    with pytest.raises(RecipeError, match=r"engine.deepspeed_config: no effect here; it needs engine.name: deepspeed"):
        make_recipe(smallest)
    assert make_recipe(smallest, ["engine.name=megatron"]) == make_recipe(SMALLEST)


def test_another_file_or_none_may_be_named_by_an_override(load, tmp_path):
    (tmp_path / "other.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert load(STAGE_1, "engine.deepspeed_config=other.json").engine.zero.stage == 2
    assert load(STAGE_1, "engine.deepspeed_config=null").engine.zero.stage == 0


def test_accumulation_steps_are_checked_when_the_ranks_are_known(load):
    recipe = load({"gradient_accumulation_steps": 2})
    assert lay_out(recipe, 2).num_microbatches(8) == 2
    with pytest.raises(RecipeError) as caught:
        lay_out(recipe, 4)
    assert str(caught.value).splitlines() == [
        (
            "ds.json:2: gradient_accumulation_steps: 2, but 4 ranks accumulate 1: train.global_batch_size 8 / "
            "(train.micro_batch_size 2 x data-parallel size 4)."
        ),
        "Delete the key, which follows from these, or change one of them.",
    ]


def test_the_resolved_recipe_runs_on_any_number_of_ranks(load, tmp_path):
    recipe = load({"gradient_accumulation_steps": 2, **STAGE_1})
    (tmp_path / "resolved.yml").write_text(to_yaml(recipe))
    again = load_recipe("resolved.yml")
    assert (again, again.notices, lay_out(again, 4).world_size) == (recipe, (), 4)


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("cpu_offload: true", "It is written engine.zero.offload_optimizer: {device: cpu}."),
        ("cpu_offload_param: true", "It is written engine.zero.offload_param: {device: cpu}."),
        ("cpu_offload_params: true", "It is written engine.zero.offload_param: {device: cpu}."),
        (
            "cpu_offload_use_pin_memory: true",
            "It is written pin_memory of engine.zero.offload_optimizer or engine.zero.offload_param.",
        ),
        ("max_live_parameters: 1", "It is written engine.zero.stage3_max_live_parameters."),
        ("allgather_partitions: true", "Nothing in DeepSpeed 0.19 reads it, at any stage. Delete it."),
        ("zero_quantized_weights: false", "It is DeepSpeed's; a recipe has no equivalent. Delete it."),
        (
            "stage3_gather_fp16_weights_on_model_save: true",
            (
                "It is DeepSpeed's; a recipe has no equivalent: nothing here calls save_16bit_model, which reads it. "
                "Delete it."
            ),
        ),
        ("stage3_max_live_params: 1", "Did you mean 'engine.zero.stage3_max_live_parameters'?"),
    ],
)
def test_another_spelling_gets_the_right_one(refusal, key, told):
    name = key.partition(":")[0]
    override = f"engine={{name: deepspeed, zero: {{stage: 3, {key}}}}}"
    assert refusal(override).endswith(f": engine.zero.{name}: unknown key. {told}")


def test_a_key_of_an_inner_section_has_its_advice_too(refusal):
    override = "engine={name: deepspeed, zero: {stage: 3, offload_optimizer: {device: cpu, ratio: 0.5}}}"
    assert refusal(override).endswith(
        ": engine.zero.offload_optimizer.ratio: unknown key. It is DeepSpeed's; a recipe has no equivalent: the "
        "part left on the device would have no schedule and no checkpoint. Delete it."
    )
