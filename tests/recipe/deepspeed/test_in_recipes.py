"""DeepSpeed's other spellings, written into the recipe itself."""

from __future__ import annotations

import pytest


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
