"""GPT-NeoX's settings of batches, the length of the training, the optimizer, its schedule and its precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_PRODUCT = "micro batch x gradient_accumulation_steps x data-parallel size"
_ITS_OWN = "GPT-NeoX replaces it"
_LOSS_SCALE = "DeepSpeed reads the keys of the object fp16 instead"

STEPS: dict[str, Meaning] = {
    "train_batch_size": Carried("train.global_batch_size", how=_PRODUCT),
    "train_micro_batch_size_per_gpu": Carried("train.micro_batch_size", how=f"global batch = {_PRODUCT}"),
    "gradient_accumulation_steps": Carried("train.global_batch_size", how=_PRODUCT),
    "train_iters": Carried("train.train_iters"),
    "seed": Carried("train.seed"),
    "exit_interval": Carried("train.exit_interval"),
    "optimizer": Carried("optimizer.name", how="optimizer.type says which"),
    "gradient_clipping": Carried("optimizer.clip_grad"),
    "weight_decay": Carried("optimizer.weight_decay"),
    "lr_decay_style": Carried("schedule.lr_decay_style", how="constant, linear and cosine are offered"),
    "lr_decay_iters": Carried("schedule.lr_decay_iters"),
    "lr_decay_fraction": Carried("schedule.lr_decay_iters", how="without lr_decay_iters: a part of train_iters"),
    "min_lr": Carried("schedule.min_lr"),
    "warmup": Carried("schedule.lr_warmup_fraction"),
    "override_lr_scheduler": Carried("schedule.override_opt_param_scheduler"),
    "use_checkpoint_lr_scheduler": Carried("schedule.use_checkpoint_opt_param_scheduler"),
    "precision": Carried("precision.dtype", how="precision, fp16.enabled and bf16.enabled decide together"),
    "fp32_allreduce": Carried("precision.grad_reduce_in_fp32", how="with data_types.grad_accum_dtype"),
    "communication_data_type": Carried("precision.grad_reduce_in_fp32", how="with data_types.grad_accum_dtype"),
    "train_epochs": NotSupported("the length of the training is a number of iterations", unless=(None,)),
    "use_bnb_optimizer": NotSupported("Adam's moments are fp32, not 8 bits", unless=(False,)),
    "scheduler": NotSupported("section schedule sets the learning rate, not a scheduler of DeepSpeed", unless=(None,)),
    "batch_size": Unread(f"{_ITS_OWN} by train_micro_batch_size_per_gpu"),
    "gas": Unread(f"{_ITS_OWN} by gradient_accumulation_steps"),
    "lr": Unread(f"{_ITS_OWN} by optimizer.params.lr"),
    "optimizer_type": Unread(f"{_ITS_OWN} by optimizer.type"),
    "clip_grad": Unread(f"{_ITS_OWN} by gradient_clipping"),
    "dynamic_loss_scale": Unread(f"{_ITS_OWN} by what fp16.loss_scale says"),
    "loss_scale": Unread(_LOSS_SCALE),
    "loss_scale_window": Unread(_LOSS_SCALE),
    "hysteresis": Unread(_LOSS_SCALE),
    "min_scale": Unread(_LOSS_SCALE),
    "curriculum_seqlen": Unread("GPT-NeoX counts with it"),
    "iteration": Unread("GPT-NeoX counts with it"),
    **dict.fromkeys(("do_train", "do_valid", "do_test"), Unread("GPT-NeoX sets it itself")),
    **dict.fromkeys(
        (
            "use_mup",
            "coord_check",
            "save_base_shapes",
        ),
        NotSupported("weights and learning rates are not scaled by width (mup)", unless=(False,)),
    ),
    **dict.fromkeys(
        (
            "base_shapes_file",
            "mup_init_scale",
            "mup_attn_temp",
            "mup_output_temp",
            "mup_embedding_mult",
            "mup_rp_embedding_mult",
            "mup_width_scale",
        ),
        Unread("it belongs to use_mup"),
    ),
}
