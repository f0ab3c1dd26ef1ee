"""Objects that GPT-NeoX hands to DeepSpeed, key by key (NeoXArgsDeepspeedConfig): "zero_optimization.stage".

Values that match fixed behaviour are those of a DeepSpeed file in a recipe.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pretrain.recipe.deepspeed.key_tables import BLOCKS, INSTEAD, SAME, SETTLED, SWITCHED
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_ZERO = "zero_optimization"
_STAGES = "at stages 2 and 3, or with offload; at stages 0 and 1 megatron-core's engine has its own"
_ONEBIT = Unread("only one-bit Adam reads it")
_OFFLOAD = "the device of a section, in an older spelling"
_SUMS = "data_types.grad_accum_dtype, communication_data_type and fp32_allreduce decide together"
_FP16 = "with fp16 and a dynamic loss scale"
_REMOVED = {
    "amp": "precision.dtype sets the dtype of everything",
    "compression_training": "weights are not compressed",
    "curriculum_learning": "every sequence has model.seq_length tokens",
    "elasticity": "the number of devices may change at a resume, the batch does not",
    "sparse_attention": "attention is not sparse",
}
_CHANGES = {
    "prescale_gradients": "gradients are divided after their sum",
    "gradient_predivide_factor": "gradients are divided after their sum",
    "dump_state": "the recipe and environment.json of the run directory are what is written",
    "fp16.fp16_master_weights_and_grads": "main weights and gradients are fp32",
    "optimizer.params.bias_correction": "Adam's moments are corrected for their start",
    "optimizer.params.amsgrad": "Adam is not AMSGrad",
}
_BY_OBJECT = {
    name: f"a recipe has no equivalent of {name}{f': {instead}' if instead else ''}"
    for name, instead in {**SWITCHED, **BLOCKS, **_REMOVED}.items()
    if name not in {"scheduler", "sequence_parallel_size", "compile", "timers"}
}


def _change(path: str) -> str:
    return _CHANGES.get(path) or INSTEAD.get(path) or f"it is always {json.dumps(SETTLED[path])} here"


OBJECTS: dict[str, Meaning] = {
    **{
        path: NotSupported(_change(path), unless=(value,))
        for path, value in SETTLED.items()
        if path != "wall_clock_breakdown" and not path.startswith("activation_checkpointing.")
    },
    **{path: Carried(key, how=_STAGES) for path, key in SAME.items() if path.startswith(f"{_ZERO}.")},
    **{f"{name}.enabled": NotSupported(change, unless=(False,)) for name, change in _BY_OBJECT.items()},
    **{name: NotSupported(change, unless=(None, {})) for name, change in _BY_OBJECT.items() if name not in SWITCHED},
    **{name: NoEffect(f"it belongs to {name}.enabled") for name in SWITCHED},
    **{name: NoEffect(f"it belongs to {name}.enabled") for name in ("amp", "curriculum_learning", "elasticity")},
    f"{_ZERO}.allgather_partitions": NoEffect(
        "updated weights are always gathered; DeepSpeed no longer reads it either"
    ),
    f"{_ZERO}.cpu_offload": Carried("engine.zero.offload_optimizer.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_param": Carried("engine.zero.offload_param.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_params": Carried("engine.zero.offload_param.device", how=_OFFLOAD),
    f"{_ZERO}.cpu_offload_use_pin_memory": Carried("engine.zero.offload_optimizer.pin_memory", how=_OFFLOAD),
    f"{_ZERO}.overlap_comm": Carried(
        "engine.zero.overlap_comm", how="parallel.overlap_grad_reduce at stage 1 without offload"
    ),
    f"{_ZERO}.reduce_bucket_size": Carried(
        "engine.zero.reduce_bucket_size", how="parallel.ddp_bucket_size at stage 1 without offload"
    ),
    f"{_ZERO}.stage": Carried("engine.zero.stage", how="stage 1 without offload is parallel.use_distributed_optimizer"),
    "zero_allow_untested_optimizer": NoEffect("Adam is one that DeepSpeed tests"),
    "fp16": Carried("precision.dtype", how="its keys have meanings of their own"),
    "fp16.enabled": Carried("precision.dtype", values={True: "fp16"}, how="with precision and bf16.enabled"),
    "fp16.type": Carried("precision.dtype", values={"bfloat16": "bf16"}, how="of GPT-NeoX until May 2023"),
    "fp16.fp16": Unread("fp16.enabled is what DeepSpeed reads"),
    "fp16.loss_scale": Carried("precision.loss_scale", how="0 is a dynamic one"),
    "fp16.initial_scale_power": Carried("precision.initial_loss_scale", how="2 to its power"),
    "fp16.loss_scale_window": Carried("precision.loss_scale_window", how=_FP16),
    "fp16.hysteresis": Carried("precision.hysteresis", how=_FP16),
    "fp16.min_loss_scale": Carried("precision.min_loss_scale", how=_FP16),
    "bf16": Carried("precision.dtype", how="its keys have meanings of their own"),
    **dict.fromkeys(
        (
            "bf16.bf16",
            "bf16.loss_scale",
            "bf16.loss_scale_window",
            "bf16.initial_scale_power",
            "bf16.hysteresis",
            "bf16.min_loss_scale",
        ),
        Unread("DeepSpeed scales the loss of fp16 alone"),
    ),
    "bf16.enabled": Carried("precision.dtype", values={True: "bf16"}, how="with precision and fp16.enabled"),
    "data_types": Carried("precision.grad_reduce_in_fp32", how="its keys have meanings of their own"),
    "data_types.grad_accum_dtype": Carried("precision.grad_reduce_in_fp32", how=_SUMS),
    "optimizer.type": Carried("optimizer.name", how="Adam is AdamW unless adam_w_mode is false"),
    "optimizer.params": Carried("optimizer.lr", how="its keys have meanings of their own"),
    "optimizer.params.lr": Carried("optimizer.lr"),
    "optimizer.params.betas": Carried("optimizer.adam_beta1", how="the second is optimizer.adam_beta2"),
    "optimizer.params.eps": Carried("optimizer.adam_eps"),
    "optimizer.params.adam_w_mode": Carried("optimizer.name", values={True: "adamw", False: "adam"}, how="of Adam"),
    "optimizer.params.weight_decay": Carried(
        "optimizer.weight_decay", how="GPT-NeoX stops where an Adam has both it and weight_decay"
    ),
    "optimizer.params.freeze_step": _ONEBIT,
    "optimizer.params.momentum": _ONEBIT,
    "optimizer.params.cuda_aware": _ONEBIT,
    "activation_checkpointing": Unread("GPT-NeoX takes partition_activations and the like instead"),
    "sparse_gradients": NotSupported("gradients of the embedding are dense", unless=(False,)),
    "autotuning_run": NotSupported("pretrain plan compares layouts; nothing is tuned", unless=(None,)),
    "deepspeed_extra_args": NoEffect("its keys count as if they stood at the top"),
}
