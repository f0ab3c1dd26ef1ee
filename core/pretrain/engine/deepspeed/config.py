"""A recipe as DeepSpeed's configuration, the model that ZeRO-3 splits weight by weight, and its parameter groups."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.bridge.deepspeed import mpu
from pretrain.bridge.deepspeed.zero_state import full_shape, read_in_turn
from pretrain.errors import RecipeError
from pretrain.model.weights import IS_EMBEDDING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from torch import nn

    from pretrain.recipe import Recipe


def deepspeed_config(recipe: Recipe, replicas: int) -> dict[str, Any]:
    """Return the configuration; the engine changes the number of micro-batches at every step."""
    train = recipe.train
    samples = train.micro_batch_size * replicas // recipe.parallel.context_parallel_size
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": train.micro_batch_size,
        "gradient_accumulation_steps": train.global_batch_size // samples,
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
    for name in ("offload_optimizer", "offload_param"):
        section = getattr(zero, name)
        if section.device != "none":
            config[name] = section.model_dump(exclude={"cpu_adam"}, exclude_none=True)
    if zero.stage == 3:
        # It would replace torch.nn.functional.linear permanently, for the whole process; the linear kernel
        # holds no gathered weight either (reference/linear.py).
        config["memory_efficient_linear"] = False
    return config


def _precision(recipe: Recipe) -> dict[str, Any]:
    precision = recipe.precision
    config: dict[str, Any] = {}
    if precision.grad_reduce_in_fp32:
        config |= {"data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32"}
    if precision.dtype == "bf16":
        config["bf16"] = {"enabled": True}
    if precision.dtype == "fp16":  # scale 0: dynamic, by pretrain.bridge.deepspeed.zero_step
        config["fp16"] = {"enabled": True, "loss_scale": precision.loss_scale or 0}
    return config


def splitting(recipe: Recipe, deepspeed: ModuleType) -> dict[str, Any]:
    """Return `building` and `whole` of `pretrain.model.build.build` for the recipe's ZeRO stage."""
    if recipe.engine.zero.stage < 3:
        return {}
    building = partial(
        _building,
        deepspeed,
        data_parallel_group=mpu.get_data_parallel_group(),
        config_dict_or_path=deepspeed_config(recipe, mpu.get_data_parallel_world_size()),
        # No dtype: the configuration's is taken, where the argument is ignored on a device without fp16
        # (deepspeed.zero.Init).
        mpu=mpu,
    )
    return {"building": building, "whole": _whole}


@contextmanager
def _building(deepspeed: ModuleType, **options: Any) -> Iterator[None]:
    init = deepspeed.zero.Init(**options)
    if init.param_swapper is not None:
        read_in_turn(init.param_swapper)
    try:
        with init:
            yield
    except RecipeError as error:  # megatron-core's build_module adds the names of modules
        raise RecipeError(str(error).partition(" when instantiating ")[0]) from None


@contextmanager
def _whole(parameter: Any) -> Iterator[None]:
    """Gather a split parameter on all ranks, and split its new value afterwards."""
    parameter.all_gather()
    yield
    parameter.partition(has_been_updated=True)


def parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return the groups that megatron-core makes: matrices with weight decay, vectors (biases, norms) without.

    megatron.core.optimizer `_get_param_groups`, whose schedule reads `wd_mult`, `max_lr` and `min_lr`. Embedding and
    output layer are apart where they have a learning rate of their own; the first group never has.
    """
    rate, least = recipe.optimizer.decoupled_lr, recipe.schedule.lowest_decoupled_lr
    matrices, vectors, apart = list[Any](), list[Any](), list[Any]()
    for parameter in model.parameters():
        if rate is not None and getattr(parameter, IS_EMBEDDING, False):
            apart.append(parameter)
        else:
            (matrices if len(full_shape(parameter)) > 1 else vectors).append(parameter)
    groups: tuple[tuple[list[Any], dict[str, Any]], ...] = (
        (matrices, {"wd_mult": 1.0}),
        (vectors, {"wd_mult": 0.0}),
        (apart, {"wd_mult": 1.0, "max_lr": rate, "min_lr": least, "is_decoupled_lr": True}),
    )
    return [{"params": chosen, **settings} for chosen, settings in groups if chosen]
