"""Flags of Megatron-DeepSpeed that concern DeepSpeed: who steps the optimizer, and what is split.

add_config_arguments in deepspeed/__init__.py; _add_zero_args in megatron/arguments.py and get_megatron_optimizer of
both forks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.tools.migrate.meanings.alike import alike
from pretrain.tools.migrate.meanings.meaning import Carried, NoEffect, NotSupported, Replaced, Unread

if TYPE_CHECKING:
    from pretrain.tools.migrate.meanings.meaning import Meaning

_ENGINE = "deepspeed where its file splits or offloads something and there is one stage; else megatron does the same"
_FILE = "its keys become keys of the recipe"
_OF_FILE = "DeepSpeed takes it from its file, and nothing reads the flag"
_ULYSSES = "one sequence is not split over ranks by its heads: the memory of its activations grows"

ENGINE: dict[str, Meaning] = {
    "deepspeed": Carried("engine.name", {True: "deepspeed"}, _ENGINE),
    "deepscale": Carried("engine.name", {True: "deepspeed"}, _ENGINE),
    "deepspeed_config": Carried("engine.deepspeed_config", how=_FILE),
    "deepscale_config": Carried("engine.deepspeed_config", how=_FILE),
    "deepspeed_mpi": Replaced("under mpirun each rank calls pretrain run, which finds out its rank by itself"),
    "zero_stage": Carried(
        "engine.zero.stage",
        how="the stage of DeepSpeed's file, which has to be the same",
        note="with engine.name=deepspeed",
    ),
    "remote_device": Carried("engine.zero.offload_param.device", how="the device of offload_param in DeepSpeed's file"),
    "cpu_optimizer": Carried(
        "engine.zero.offload_optimizer.device", {True: "cpu"}, "the device of offload_optimizer in DeepSpeed's file"
    ),
    "cpu_torch_adam": Carried("engine.zero.offload_optimizer.cpu_adam", {True: "torch"}, "with cpu_optimizer alone"),
    "no_pipeline_parallel": NoEffect("without pipeline stages there is nothing to switch off"),
    **alike(
        Unread(_OF_FILE),
        """zero_reduce_scatter zero_contigious_gradients zero_reduce_bucket_size zero_allgather_bucket_size
        use_pin_memory""",
    ),
    "ds_sequence_parallel_size": NotSupported(_ULYSSES, (1,)),
    "force_ds_sequence_parallel": NotSupported(_ULYSSES),
    **alike(
        Unread("it belongs to ds_sequence_parallel_size"),
        "ds_sequence_parallel_fpdt ds_sequence_parallel_fpdt_chunk_size ds_sequence_parallel_fpdt_offloading",
    ),
    "use_dataset_only": NotSupported("the whole training is run, not only its token files given to another program"),
}
"""By dest."""
