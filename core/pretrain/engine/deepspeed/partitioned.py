"""Construction of a model that ZeRO-3 splits over the ranks weight by weight, and its parameter groups."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from megatron.core import parallel_state

from pretrain.bridge.deepspeed import mpu
from pretrain.bridge.deepspeed.zero_state import full_shape
from pretrain.bridge.deepspeed.zero_swapped_tensors import read_in_turn
from pretrain.engine.deepspeed.config import deepspeed_config
from pretrain.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from torch import nn

    from pretrain.recipe import Recipe


def splitting(recipe: Recipe, deepspeed: ModuleType) -> dict[str, Any]:
    """Return `building` and `whole` of `pretrain.model.build.build` for the recipe's ZeRO stage."""
    if recipe.engine.zero.stage < 3:
        return {}
    building = partial(
        _building,
        deepspeed,
        data_parallel_group=parallel_state.get_data_parallel_group(),
        config_dict_or_path=deepspeed_config(recipe, parallel_state.get_data_parallel_world_size()),
        # No dtype: the configuration's is taken, where the argument is ignored on a device without fp16
        # (deepspeed.zero.Init).
        mpu=mpu,
    )
    return {"building": building, "whole": whole}


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
def whole(parameter: Any) -> Iterator[None]:
    """Gather a split parameter on all ranks, and split its new value afterwards."""
    parameter.all_gather()
    yield
    parameter.partition(has_been_updated=True)


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the groups that megatron-core makes: matrices with weight decay, vectors (biases, norms) without.

    megatron.core.optimizer `_get_param_groups`, whose schedule reads `wd_mult` and `lr_mult`.
    """
    parameters = list(model.parameters())
    matrices = [parameter for parameter in parameters if len(full_shape(parameter)) > 1]
    vectors = [parameter for parameter in parameters if len(full_shape(parameter)) <= 1]
    groups = ((matrices, 1.0), (vectors, 0.0))
    return [{"params": chosen, "wd_mult": decay, "lr_mult": 1.0} for chosen, decay in groups if chosen]
