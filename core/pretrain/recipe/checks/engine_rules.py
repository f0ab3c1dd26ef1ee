"""Keys that only one engine reads, and at which of DeepSpeed's ZeRO stages.

Which stage reads what was looked up in deepspeed 0.19.8: runtime/engine.py (`_configure_zero_optimizer`,
`_configure_bf16_optimizer`), zero/stage_1_and_2.py and zero/stage3.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.recipe.checks.rules import Rule, only

if TYPE_CHECKING:
    from pretrain.recipe.recipe import Recipe

_STAGE = ("engine.zero.stage",)
_ZERO = "engine.zero"
_OPTIMIZER = "engine.zero.offload_optimizer"
_PARAM = "engine.zero.offload_param"

_BF16_ALONE = (
    "engine.zero.stage 2 or 3, or stage 1 without fp32 gradients of bf16 (precision.grad_reduce_in_fp32), for which "
    "DeepSpeed has another optimizer"
)
_BF16_DECIDES = (*_STAGE, "precision.dtype", "precision.grad_reduce_in_fp32", f"{_OPTIMIZER}.device")


def _stage(recipe: Recipe) -> int:
    return recipe.engine.zero.stage


def _buckets(recipe: Recipe) -> bool:
    """Say whether ZeRO's buckets are read; BF16_Optimizer reads none (DeepSpeedEngine._do_optimizer_sanity_check)."""
    zero, precision = recipe.engine.zero, recipe.precision
    fp32_gradients = precision.dtype == "bf16" and precision.grad_reduce_in_fp32
    return zero.stage > 1 or (zero.stage == 1 and not (fp32_gradients and zero.offload_optimizer.device != "cpu"))


RULES = (
    only("engine.name: deepspeed", _ZERO, "engine.deepspeed_config"),
    only(
        "engine.name: megatron",
        "parallel.use_distributed_optimizer",
        note=" (with deepspeed, engine.zero.stage: 1 does this)",
    ),
    only(
        "engine.name: megatron",
        "parallel.overlap_grad_reduce",
        note=" (with deepspeed, engine.zero.overlap_comm: true does this)",
    ),
    Rule(
        ("parallel.ddp_bucket_size",),
        "parallel.overlap_grad_reduce and engine.name: megatron (with deepspeed, engine.zero.reduce_bucket_size)",
        ("engine.name", "parallel.overlap_grad_reduce"),
        lambda r: r.engine.name == "megatron" and r.parallel.overlap_grad_reduce,
    ),
    only(
        "engine.name: megatron",
        "parallel.overlap_param_gather",
        note=" (deepspeed gathers ahead by itself, at engine.zero.stage: 3)",
    ),
    only("engine.name: megatron", "logging.log_num_zeros_in_grad"),
    Rule(
        (
            f"{_ZERO}.contiguous_gradients",
            f"{_ZERO}.reduce_scatter",
            f"{_ZERO}.reduce_bucket_size",
            f"{_ZERO}.overlap_comm",
        ),
        _BF16_ALONE,
        _BF16_DECIDES,
        _buckets,
    ),
    Rule(
        (f"{_ZERO}.round_robin_gradients",),
        _BF16_ALONE.replace("2 or 3", "2"),
        _BF16_DECIDES,
        lambda r: _buckets(r) and _stage(r) < 3,
    ),
    Rule(
        (f"{_ZERO}.allgather_bucket_size",),
        "engine.zero.stage 1 or 2",
        _STAGE,
        lambda r: _stage(r) in {1, 2},
    ),
    only(
        "engine.zero.stage: 3",
        f"{_ZERO}.sub_group_size",
        f"{_ZERO}.stage3_prefetch_bucket_size",
        f"{_ZERO}.stage3_param_persistence_threshold",
        f"{_ZERO}.stage3_model_persistence_threshold",
        f"{_ZERO}.stage3_max_live_parameters",
        f"{_ZERO}.stage3_max_reuse_distance",
        _PARAM,
    ),
    Rule(
        (_OPTIMIZER,),
        "engine.zero.stage 1 to 3",
        _STAGE,
        lambda r: _stage(r) > 0,
    ),
    Rule(
        ("kernels.optimizer",),
        f"no {_OPTIMIZER}.device, with which {_OPTIMIZER}.cpu_adam steps",
        (f"{_OPTIMIZER}.device",),
        lambda r: r.engine.zero.offload_optimizer.device == "none",
    ),
    Rule(
        (f"{_OPTIMIZER}.pin_memory", f"{_OPTIMIZER}.cpu_adam"),
        f"{_OPTIMIZER}.device cpu or nvme",
        (f"{_OPTIMIZER}.device",),
        lambda r: r.engine.zero.offload_optimizer.device != "none",
    ),
    Rule(
        tuple(f"{_OPTIMIZER}.{key}" for key in ("nvme_path", "buffer_count", "pipeline_read", "pipeline_write")),
        f"{_OPTIMIZER}.device: nvme",
        (f"{_OPTIMIZER}.device",),
        lambda r: r.engine.zero.offload_optimizer.device == "nvme",
    ),
    Rule(
        (f"{_OPTIMIZER}.fast_init",),
        f"{_OPTIMIZER}.device: nvme and {_PARAM}.device: nvme",
        (f"{_OPTIMIZER}.device", f"{_PARAM}.device"),
        lambda r: r.engine.zero.offload_optimizer.device == r.engine.zero.offload_param.device == "nvme",
    ),
    Rule(
        (f"{_PARAM}.pin_memory",),
        f"{_PARAM}.device cpu or nvme",
        (f"{_PARAM}.device",),
        lambda r: r.engine.zero.offload_param.device != "none",
    ),
    Rule(
        tuple(f"{_PARAM}.{key}" for key in ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu")),
        f"{_PARAM}.device: nvme",
        (f"{_PARAM}.device",),
        lambda r: r.engine.zero.offload_param.device == "nvme",
    ),
)
