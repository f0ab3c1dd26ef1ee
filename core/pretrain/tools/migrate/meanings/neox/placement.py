"""GPT-NeoX's settings of parallelism, recomputation and launching (NeoXArgsParallelism, NeoXArgsDeepspeedRunner)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.meaning import Carried, Launched, NoEffect, NotSupported, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_LAUNCHER = NoEffect("pretrain starts and joins its ranks by itself; under torchrun it is torchrun's")
_ITS_OWN = Unread("GPT-NeoX sets it itself")
_OF_ZERO = Unread("GPT-NeoX replaces it by the key of zero_optimization")
_FULL = "with checkpoint_activations"

PLACEMENT: dict[str, Meaning] = {
    "model_parallel_size": Carried("parallel.tensor_model_parallel_size", how="0 means 1"),
    "pipe_parallel_size": Carried("parallel.pipeline_model_parallel_size", how="0 means 1"),
    "sequence_parallel": Carried("parallel.sequence_parallel", how="with model_parallel_size over 1"),
    "pipe_partition_method": NotSupported(
        "layers are spread evenly over the stages, or as parallel.pipeline_layers says",
        unless=("type:transformer|mlp", "type:transformer"),
    ),
    "checkpoint_activations": Carried("recompute.granularity", values={True: "full", False: "none"}),
    "checkpoint_num_layers": Carried("recompute.num_layers", how=_FULL),
    "partition_activations": Carried("recompute.distribute_saved_activations", how=_FULL),
    "contiguous_checkpointing": NotSupported("kept activations have no buffer of their own", unless=(False,)),
    "checkpoint_in_cpu": NotSupported("kept activations stay on the device, where they need memory", unless=(False,)),
    "deepspeed_activation_checkpointing": NoEffect("section recompute is the same for both engines"),
    "synchronize_each_layer": NoEffect("recomputation needs no barriers"),
    "profile_backward": NotSupported("the backward pass of recomputed layers is not profiled", unless=(False,)),
    "zero_optimization": Carried("engine.zero.stage", how="its keys have meanings of their own"),
    "zero_stage": _OF_ZERO,
    "zero_reduce_scatter": _OF_ZERO,
    "zero_contiguous_gradients": _OF_ZERO,
    "zero_reduce_bucket_size": _OF_ZERO,
    "zero_allgather_bucket_size": _OF_ZERO,
    "deepspeed": NoEffect("GPT-NeoX always trains with DeepSpeed; here engine.name follows from zero_optimization"),
    "num_gpus": Launched("--nproc"),
    "num_nodes": Launched("--nnodes"),
    "global_num_gpus": Launched("--nproc and --nnodes"),
    "hostfile": Launched("--hostfile"),
    "master_addr": Launched("--rdzv HOST:PORT"),
    "master_port": Launched("--rdzv HOST:PORT"),
    "include": NotSupported("devices are those of the hostfile and --nproc", unless=(None, "")),
    "exclude": NotSupported("devices are those of the hostfile and --nproc", unless=(None, "")),
    **dict.fromkeys(
        (
            "launcher",
            "force_multi",
            "detect_nvlink_pairs",
            "no_ssh_check",
            "comment",
            "account",
            "deepspeed_mpi",
            "deepspeed_slurm",
            "slurm_comment",
        ),
        _LAUNCHER,
    ),
    **dict.fromkeys(("world_size", "rank", "local_rank", "is_pipe_parallel", "user_script"), _ITS_OWN),
    "distributed_backend": NoEffect("the device's plugin says which collectives it has: --backend"),
    "lazy_mpu_init": NoEffect("groups are made once, when the run starts"),
    "deepscale": Unread("it is the old name of deepspeed, and does nothing"),
    "deepscale_config": Unread("it is the old name of a DeepSpeed file, and does nothing"),
    "adlr_autoresume": NotSupported("the cluster's scheduler is not asked; SIGTERM saves and exits", unless=(False,)),
    "adlr_autoresume_interval": Unread("it belongs to adlr_autoresume"),
    "adlr_autoresume_object": _ITS_OWN,
}
