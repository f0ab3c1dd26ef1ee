"""A recipe as DeepSpeed's configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pretrain.recipe import Recipe
    from pretrain.recipe.sections.engine import OffloadOptimizerSection, OffloadParamSection


def deepspeed_config(recipe: Recipe, data_parallel_size: int) -> dict[str, Any]:
    """Return the configuration for `deepspeed.initialize` and `deepspeed.zero.Init`.

    Args:
        recipe: what is trained.
        data_parallel_size: data-parallel ranks. The engine changes the number of micro-batches at every step.
    """
    train = recipe.train
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.global_batch_size // (train.micro_batch_size * data_parallel_size),
        # Without ZeRO the engine clips. DeepSpeed reports no norm in fp32; in bf16 it counts the first tensor-parallel
        # rank alone, because get_norm_with_moe_layers looks for the mark of split weights on their gradients.
        "gradient_clipping": recipe.optimizer.clip_grad if recipe.engine.zero.stage > 0 else 0.0,
        "zero_optimization": _zero(recipe),
        # The optimizer is the negotiated one, or on the host the one that the recipe names.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
        # It would wait for the device before every forward pass.
        "timers": {"throughput": {"enabled": False}},
    }
    return config | _precision(recipe)


def _zero(recipe: Recipe) -> dict[str, Any]:
    zero = recipe.engine.zero
    config = zero.model_dump(exclude={"offload_optimizer", "offload_param"}, exclude_none=True)
    if zero.offload_optimizer.device != "none":
        config["offload_optimizer"] = _offload(zero.offload_optimizer)
    if zero.offload_param.device != "none":
        config["offload_param"] = _offload(zero.offload_param)
    if zero.stage == 3:
        # It would replace torch.nn.functional.linear permanently, for the whole process; the linear kernel
        # holds no gathered weight either (reference/linear.py).
        config["memory_efficient_linear"] = False
    return config


def _offload(section: OffloadOptimizerSection | OffloadParamSection) -> dict[str, Any]:
    return section.model_dump(exclude={"cpu_adam"}, exclude_none=True)


def _precision(recipe: Recipe) -> dict[str, Any]:
    precision = recipe.precision
    config: dict[str, Any] = {}
    if precision.grad_reduce_in_fp32:
        config |= {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    if precision.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if precision.dtype == "fp16":
        config["fp16"] = {
            "enabled": True,
            "loss_scale": precision.loss_scale or 0,  # 0: dynamic, by pretrain.bridge.deepspeed.zero_step
        }
    return config
