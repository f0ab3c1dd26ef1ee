"""Experts: which layers have them, how a token's are chosen and their load is evened out, and their ranks."""

# Sources: _add_moe_args and validate_args in megatron/training/arguments.py; get_gpt_decoder_block_spec in
# megatron/core/models/gpt/gpt_layer_specs.py; topk_routing_with_score_function in
# megatron/core/transformer/moe/moe_utils.py. MindSpeed-LLM: core/transformer/transformer_block.py, moe/router.py.

from __future__ import annotations

import ast
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING

from pretrain.recipe.sections.model import dense_and_frequency
from pretrain.tools.migrate.setting import Derived, in_place, taken, taken_if_on, unused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.tools.migrate.setting import Function, Settings

OF_EXPERTS: tuple[str, ...] = (
    *("moe_*", "expert_*", "mlp_type", "topk", "create_moe_param_group", "use_tutel", "norm_topk_prob", "fix_router"),
    *("enable_expert_tensor_parallelism", "overlap_moe_*", "overlap_dispatch_*", "ep_overlap_*", "seq_aux"),
    *("use_grouped_gemm_for_shared_expert", "first_k_dense_replace", "n_shared_experts", "shared_expert_gate*"),
    *("num_zero_experts", "topk_softmax_in_fp32", "use_fused_moe_*", "router_gating_in_fp32", "n_hash_layers"),
)
"""Flags that a program reads for a model with experts alone."""

_BELONGS = "it belongs to num_experts"
_WIDTHS = ("moe_intermediate_size", "moe_ffn_hidden_size")  # the first is MindSpeed-LLM's older name
_FREQUENCY, _DENSE = "moe_layer_freq", "first_k_dense_replace"
_BALANCING, _COEFFICIENT = "moe_router_load_balancing_type", "moe_aux_loss_coeff"
_CAPACITY = "moe_expert_capacity_factor"
_GROUPS, _BEST, _TOPK = "moe_router_num_groups", "moe_router_group_topk", "moe_router_topk"
_NORMED = "norm_topk_prob"
_SOFTMAX_FIRST = "softmax_topk"  # MindSpeed-LLM's
_LOSSES = ("aux_loss", "seq_aux_loss")
_RATED = 2  # experts by which a group is rated here
_MOST = 10_000


def has_experts(settings: Settings) -> bool:
    """Say whether the model has megatron-core's experts, of which a router chooses several for a token."""
    experts = settings.value("num_experts")
    return isinstance(experts, int) and experts > 1 and _TOPK in settings.program.flags


def num_experts(settings: Settings) -> Derived | None:
    """Return the experts; without them nothing is taken of the flags that belong to them."""
    if has_experts(settings):
        return Derived(settings.value("num_experts"), ("num_experts",))
    idle = unused([name for name in settings.stated if any(fnmatchcase(name, each) for each in OF_EXPERTS)], _BELONGS)
    experts = settings.value("num_experts")
    if not isinstance(experts, int) or experts < 2:  # Megatron-DeepSpeed's are a list
        return idle
    why = "every token passes one MLP in each layer: the experts of 2023 and before, of which it has one, are not here"
    return Derived(None, (), lost=(("num_experts", why),), idle=idle.idle)


def layers_with_experts(settings: Settings) -> list[bool] | None:
    """Return whether each layer has experts; None if the settings do not say it."""
    number = int(settings.value("num_layers", settings.value("encoder_num_layers", 0)))
    frequency, first = settings.value(_FREQUENCY, 1), settings.value(_DENSE) or 0
    if isinstance(frequency, str):
        frequency = _expanded(frequency)
    if isinstance(frequency, list):
        return [each == 1 for each in frequency] if len(frequency) == number else None
    if _DENSE in settings.program.flags and first < 1:  # then MindSpeed-LLM's layers all have experts
        return [True] * number
    return [layer >= first and layer % frequency == 0 for layer in range(number)] if frequency else None


def _expanded(text: str) -> list[int] | None:
    """Return the list of an expression such as ([0]*3+[1])*6, which Megatron-LM evaluates; None for another one."""
    try:
        return _value_of(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value_of(node: ast.expr) -> list[int]:
    match node:
        case ast.List(items):
            numbers = [each.value for each in items if isinstance(each, ast.Constant) and isinstance(each.value, int)]
            found = numbers if len(numbers) == len(items) and set(numbers) <= {0, 1} else []
        case ast.BinOp(left, ast.Add(), right):
            found = _value_of(left) + _value_of(right)
        case ast.BinOp(left, ast.Mult(), ast.Constant(int(times))):
            part = _value_of(left)
            found = part * times if len(part) * times <= _MOST else []
        case _:
            raise ValueError
    if not 0 < len(found) <= _MOST:
        raise ValueError
    return found


def _place_in(settings: Settings, part: int) -> Derived | None:
    """Return first_k_dense_replace (part 0) or moe_layer_freq (1)."""
    if not has_experts(settings):
        return None
    found = layers_with_experts(settings)
    pair = None if found is None else dense_and_frequency(found)
    names = tuple(name for name in (_FREQUENCY, _DENSE) if name in settings.stated)
    if pair is None:
        why = "experts are in all layers: first_k_dense_replace and moe_layer_freq do not say these layers"
        return in_place(None, _FREQUENCY, why) if part else None
    return Derived(pair[part], names or (_FREQUENCY,))


def width_of_expert(settings: Settings) -> int | None:
    """Return the width of an expert; None if it is that of the MLP."""
    name = settings.first(*_WIDTHS)
    return int(settings.value(name)) if name else None


def _width(settings: Settings) -> Derived | None:
    return taken(settings, settings.first(*_WIDTHS)) if has_experts(settings) and settings.first(*_WIDTHS) else None


def shared_width(settings: Settings) -> Derived | None:
    """Return the width of the shared experts, which MindSpeed-LLM counts in experts."""
    name, number = "moe_shared_expert_intermediate_size", "n_shared_experts"
    if not has_experts(settings):
        return None
    width, each = settings.value(name), width_of_expert(settings) or settings.value("ffn_hidden_size")
    if width is None and settings.value(number) and each:
        return Derived(settings.value(number) * each, (number,), "times the width of an expert")
    return taken_if_on(settings, name)


def z_loss_coeff(settings: Settings) -> Derived | None:
    """Return the factor of the z loss; 0 is none, as no value is."""
    return taken_if_on(settings, "moe_z_loss_coeff") if has_experts(settings) else None


def capacity_factor(settings: Settings) -> Derived | None:
    """Return the factor of an expert's capacity, which the source has in evaluations too; negative is none."""
    value = settings.value(_CAPACITY)
    if not has_experts(settings) or value is None or value < 0:
        return None
    why = []
    if settings.value("tensor_model_parallel_size", 1) > 1:
        why.append("it is that of a micro batch's tokens on all tensor-parallel ranks, not of one rank's")
    if settings.value("moe_router_enable_expert_bias"):
        why.append("the bias follows from what tokens choose, not from what experts compute")
    return Derived(value, (_CAPACITY,), "evaluations drop no tokens here", tuple((_CAPACITY, each) for each in why))


def drop_policy(settings: Settings) -> Derived | None:
    """Return which tokens are dropped."""
    name = "moe_token_drop_policy"
    if not capacity_factor(settings):
        return None
    how = "the last tokens; there topk chooses among equals" if settings.value(name) == "position" else ""
    return Derived(settings.value(name, "probs"), (name,), how)


def score_function(settings: Settings) -> Derived | None:
    """Return how the router's logits become scores."""
    name = "moe_router_score_function"
    if not has_experts(settings):
        return None
    given = settings.value(name, "softmax")
    if given not in {"softmax", "sigmoid"}:
        return in_place(None, name, f"{given} is not supported; softmax is used instead")
    return Derived(given, (name,))


def pre_softmax(settings: Settings) -> Derived | None:
    """Return whether the weights of a token's experts are those of the softmax over all."""
    name = "moe_router_pre_softmax"
    if not has_experts(settings) or settings.value("moe_router_score_function", "softmax") != "softmax":
        return None
    kind = _kind(settings)
    if not (settings.value(name) or kind == _SOFTMAX_FIRST):
        return unused(_NORMED, "they sum to 1 anyway") if settings.value(_NORMED) else taken(settings, name)
    is_normed = bool(settings.value(_NORMED)) and kind in {"aux_loss", _SOFTMAX_FIRST}
    return Derived(not is_normed, tuple(each for each in (name, _NORMED, _BALANCING) if settings.value(each)))


def num_groups(settings: Settings) -> Derived | None:
    """Return the groups of experts, where the source rates a group as it is here: by its best two."""
    groups, best = settings.value(_GROUPS), settings.value(_BEST)
    if not has_experts(settings) or not groups:
        return None
    if groups == 1:
        return unused((_GROUPS, _BEST), "one group is all experts")
    if best and settings.value(_TOPK) // best != _RATED:
        rated = settings.value(_TOPK) // best
        return Derived(groups, (_GROUPS,), lost=((_GROUPS, f"a group is rated by its best 2 experts, not {rated}"),))
    return Derived(groups, (_GROUPS,))


def group_topk(settings: Settings) -> Derived | None:
    """Return the groups of one token."""
    return taken(settings, _BEST) if has_experts(settings) and (settings.value(_GROUPS) or 0) > 1 else None


def load_balancing(settings: Settings) -> Derived | None:
    """Return the auxiliary loss, which without a coefficient is none."""
    if not has_experts(settings):
        return None
    kind, names = _kind(settings), (_BALANCING,)
    if kind == "sinkhorn" or (kind not in {*_LOSSES, "none", "global_aux_loss", _SOFTMAX_FIRST}):
        return in_place(None, _BALANCING, f"{kind} chooses other experts: they are those with the best scores here")
    if kind == "global_aux_loss":
        why = "the load is evened out over each micro batch, not over the global batch"
        return Derived("aux_loss", names, lost=((_BALANCING, why),)) if _coefficient(settings) else None
    if kind not in _LOSSES:
        return Derived("none", names)
    if not _coefficient(settings):
        return Derived("none", (_COEFFICIENT,), "its coefficient is 0")
    return Derived(kind, names)


def _kind(settings: Settings) -> str:
    given = settings.value(_BALANCING, "aux_loss")
    return " ".join(given) if isinstance(given, list) else str(given)


def _coefficient(settings: Settings) -> float:
    given = settings.value(_COEFFICIENT, 0.0)
    return float(given[0] if isinstance(given, list) else given)


def aux_loss_coeff(settings: Settings) -> Derived | None:
    """Return the factor of the auxiliary loss."""
    value = _coefficient(settings)
    is_loss = _kind(settings) in {*_LOSSES, "global_aux_loss"}
    return Derived(value, (_COEFFICIENT,)) if has_experts(settings) and value and is_loss else None


def _with_experts(settings: Settings, take: Callable[[Settings], Derived | None]) -> Derived | None:
    return take(settings) if has_experts(settings) else None


def _plain(name: str) -> Function:
    return partial(_with_experts, take=partial(taken, name=name))


FUNCTIONS: Mapping[str, Function] = {
    "model.num_experts": num_experts,
    "model.first_k_dense_replace": partial(_place_in, part=0),
    "model.moe_layer_freq": partial(_place_in, part=1),
    "model.moe_shared_expert_intermediate_size": shared_width,
    "model.moe_ffn_hidden_size": _width,
    "model.moe_router_score_function": score_function,
    "model.moe_router_pre_softmax": pre_softmax,
    "model.moe_router_num_groups": num_groups,
    "model.moe_router_group_topk": group_topk,
    "model.moe_router_load_balancing_type": load_balancing,
    "model.moe_aux_loss_coeff": aux_loss_coeff,
    "model.moe_z_loss_coeff": z_loss_coeff,
    "model.moe_expert_capacity_factor": capacity_factor,
    "model.moe_token_drop_policy": drop_policy,
    **{
        f"model.{name}": _plain(name)
        for name in (
            *("moe_router_topk", "moe_router_topk_scaling_factor"),
            *("moe_router_enable_expert_bias", "moe_router_bias_update_rate"),
        )
    },
    **{f"parallel.{name}": _plain(name) for name in ("expert_model_parallel_size", "expert_tensor_parallel_size")},
}
