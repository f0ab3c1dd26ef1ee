"""Flags of the layout over the ranks, and of the communication between them.

validate_args; get_model in megatron/training/training.py; megatron/core/model_parallel_config.py and
megatron/core/distributed/distributed_data_parallel_config.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pretrain.errors import MigrateError
from pretrain.tools.migrate.meaning import Ignored, Mapped, NoEffect, NotSupported, Replaced, alike
from pretrain.tools.migrate.megatron.stages import (
    STAGE_LAYOUT,
    chunks_of_layout,
    parts_of_layout,
    pipeline_stages,
    place_of,
)
from pretrain.tools.migrate.setting import Derived, unused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pretrain.tools.migrate.meaning import Meaning
    from pretrain.tools.migrate.setting import Function, Settings


_TENSOR = "tensor_model_parallel_size, called model_parallel_size before the end of 2020"
_CHUNKS = "layers of a stage / layers of a chunk"
_SEQUENCE = "one sequence is not split over ranks by its positions: its activations take more memory"
_COUNTED = "the embedding and the loss count as a layer of the first and of the last stage"
_ONE_DDP = "there is one kind of data parallelism, with contiguous buffers; engine.name chooses who splits what"
_BUFFERS = "gradients always lie in contiguous buffers"
_STAGE_TENSORS = "parallel.sequence_parallel splits what goes between stages"
_FSDP = "weights are split over the replicas by DeepSpeed: engine.name: deepspeed with engine.zero.stage: 3"
_TIMES = "the times at which gradients and weights are communicated differ: the speed can, the results do not"
_TUNING = "collectives run as the device's plugin sets them up: the speed can differ, the results do not"
_TP_OVERLAP = "collectives of tensor parallelism do not overlap with matrix products in parts: it can be slower"
_GTP = "weights are not split further beside tensor parallelism: they take more memory"

LAYOUT: dict[str, Meaning] = {
    "tensor_model_parallel_size": Mapped("parallel.tensor_model_parallel_size", how=_TENSOR),
    "model_parallel_size": Mapped("parallel.tensor_model_parallel_size", how=_TENSOR),
    "pipeline_model_parallel_size": Mapped("parallel.pipeline_model_parallel_size"),
    "num_layers_per_virtual_pipeline_stage": Mapped("parallel.virtual_pipeline_model_parallel_size", how=_CHUNKS),
    "num_virtual_stages_per_pipeline_rank": Mapped(
        "parallel.virtual_pipeline_model_parallel_size", how="chunks of a stage; 1 is none"
    ),
    "decoder_first_pipeline_num_layers": Mapped("parallel.num_layers_in_first_pipeline_stage"),
    "decoder_last_pipeline_num_layers": Mapped("parallel.num_layers_in_last_pipeline_stage"),
    "pipeline_model_parallel_layout": Mapped("parallel.pipeline_layers", how="of every stage, such as [5, 6, 6, 5]"),
    "account_for_embedding_in_pipeline_split": Mapped("parallel.pipeline_layers", how=_COUNTED),
    "account_for_loss_in_pipeline_split": Mapped("parallel.pipeline_layers", how=_COUNTED),
    "sequence_parallel": Mapped("parallel.sequence_parallel", {True: True}, "off with one tensor-parallel rank"),
    "context_parallel_size": NotSupported(_SEQUENCE, (1,)),
    **alike(
        Ignored("it belongs to context_parallel_size"),
        """cp_comm_type hierarchical_context_parallel_sizes hybrid_context_parallel max_seqlen_per_dp_cp_rank""",
    ),
    "standalone_embedding_stage": NotSupported("the embedding is on the first stage, beside its layers"),
    **alike(
        Ignored("only models with a decoder of their own read it"),
        """pipeline_model_parallel_split_rank encoder_pipeline_model_parallel_size
        encoder_tensor_model_parallel_size""",
    ),
    "pp_partition_method": NotSupported(
        "stages have as many layers each, or those of parallel.pipeline_layers; embeddings do not count as layers"
    ),
    "microbatch_group_size_per_vp_stage": NotSupported(
        "as many micro batches pass a chunk in a row as there are stages: memory and speed can differ"
    ),
    **alike(
        NotSupported(
            "the pipeline has no schedule with zero bubbles: it waits longer at the start and the end of a step"
        ),
        "enable_zbh1_pipeline enable_zbh1_exact_semantics",
    ),
    "use_tp_pp_dp_mapping": NotSupported("neighbouring ranks are tensor-parallel, then data-parallel, then stages"),
    **alike(
        NotSupported(_GTP),
        "tensor_parallel_num_weight_shards expert_tensor_parallel_num_weight_shards",
    ),
    **alike(
        Ignored("it belongs to tensor_parallel_num_weight_shards"),
        "gtp_*",
    ),
}
"""Flags of the layout."""

DATA_PARALLEL: dict[str, Meaning] = {
    "use_distributed_optimizer": Mapped(
        "parallel.use_distributed_optimizer", {True: True}, "or ZeRO-1 of DeepSpeed's file"
    ),
    "overlap_grad_reduce": Mapped("parallel.overlap_grad_reduce"),
    "overlap_param_gather": Mapped("parallel.overlap_param_gather"),
    "ddp_bucket_size": Mapped("parallel.ddp_bucket_size"),
    "ddp_num_buckets": NotSupported("buckets have a size, not a number: parallel.ddp_bucket_size"),
    "DDP_impl": NoEffect(_ONE_DDP),
    **alike(NoEffect(_BUFFERS), "use_contiguous_buffers_in_ddp use_contiguous_buffers_in_local_ddp"),
    "ddp_average_in_collective": NotSupported("gradients are divided before they are summed: their last bits differ"),
    "gradient_reduce_div_fusion": NoEffect("it computes the same mean in one kernel"),
    "num_distributed_optimizer_instances": NotSupported("the optimizer's state is split over all replicas", (1,)),
    **alike(
        NotSupported(_TIMES),
        """align_grad_reduce align_param_gather delay_grad_reduce delay_param_gather
        overlap_param_gather_with_optimizer_step ddp_pad_buckets_for_high_nccl_busbw""",
    ),
    **alike(NotSupported(_FSDP), "use_megatron_fsdp use_custom_fsdp use_torch_fsdp2"),
    **alike(
        Ignored("it belongs to fully sharded data parallelism: use_megatron_fsdp or use_torch_fsdp2"),
        """data_parallel_sharding_strategy outer_dp_sharding_strategy torch_fsdp2_reshard_after_forward fsdp_*
        suggested_communication_unit_size enable_full_sharding_in_hsdp megatron_fsdp_* create_all_gather_group
        strict_fsdp_dtensor_load""",
    ),
    "check_weight_hash_across_dp_replicas_interval": Mapped("train.check_replicas_interval"),
}
"""Flags of data parallelism."""

COMMUNICATION: dict[str, Meaning] = {
    "overlap_p2p_comm": Mapped("parallel.overlap_p2p_comm", how="of the interleaved schedule alone"),
    "distributed_timeout_minutes": Mapped("parallel.distributed_timeout_minutes"),
    "distributed_timeout_seconds_after_init": NotSupported(
        "collectives have one timeout from the first step to the last"
    ),
    "distributed_backend": Replaced("the device's plugin says which collectives it has: --backend"),
    "local_rank": NoEffect("pretrain starts and joins its ranks by itself; under torchrun it is torchrun's"),
    "lazy_mpu_init": NoEffect("groups are made once, when the run starts"),
    "fake_process_group": NotSupported("all ranks of a run communicate"),
    "use_ring_exchange_p2p": NoEffect("the device's plugin says how its point-to-point calls are made"),
    "scatter_gather_tensors_in_pipeline": NoEffect(_STAGE_TENSORS),
    "deallocate_pipeline_outputs": NoEffect("outputs of a stage are always freed once they are sent"),
    "overlap_p2p_comm_warmup_flush": NotSupported(_TIMES),
    **alike(
        NoEffect("groups of gloo are only for the host, and change no number"),
        "enable_gloo_process_groups use_gloo_process_groups",
    ),
    **alike(
        NotSupported(_TUNING),
        """nccl_communicator_config_path nccl_ub disable_symmetric_registration use_sharp sharp_enabled_group
        high_priority_stream_groups high_priority_a2a_comm_stream pipeline_model_parallel_comm_backend
        symmetric_ar_type""",
    ),
    **alike(
        NoEffect("it works under tensor parallelism as the kernels do, and changes no number"),
        """async_tensor_model_parallel_allreduce no_async_tensor_model_parallel_allreduce
        async_tensor_parallel_allreduce""",
    ),
    "tp_comm_overlap": NotSupported(_TP_OVERLAP),
    **alike(
        Ignored("it belongs to tp_comm_overlap"),
        "tp_comm_*",
    ),
}
"""Flags of the communication."""

PARALLEL = LAYOUT | DATA_PARALLEL | COMMUNICATION
"""All of them, by dest."""


COUNTED = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
"""Switches by which the embedding, or the loss, counts as one more layer."""

_METHODS = ("recompute_method", "activations_checkpoint_method")
_LAYERS = ("recompute_num_layers", "activations_checkpoint_num_layers", "checkpoint_num_layers")
_SPLIT = ("distribute_saved_activations", "distribute_checkpointed_activations", "partition_activations")


def tensor_model_parallel_size(settings: Settings) -> Derived | None:
    """Return the ranks of a layer, which the versions of 2019 call --model-parallel-size."""
    return _first(settings, ("tensor_model_parallel_size", "model_parallel_size"))


def virtual_pipeline_model_parallel_size(settings: Settings) -> Derived | None:
    """Return the chunks of a stage, which the source gives as such or by the layers of one."""
    if (counted := chunks_of_layout(settings)) is not None:
        return Derived(counted if counted > 1 else None, (STAGE_LAYOUT,))
    chunks = settings.value("num_virtual_stages_per_pipeline_rank")
    if chunks is not None:
        return Derived(chunks if chunks > 1 else None, ("num_virtual_stages_per_pipeline_rank",))
    name = "num_layers_per_virtual_pipeline_stage"
    layers, stages = settings.value("num_layers"), pipeline_stages(settings)
    chunk = settings.value(name)
    if chunk is None or not layers:
        return None
    ends = sum(bool(settings.value(counted)) for counted in COUNTED)
    with_ends = f"{layers} layers" + f" and {ends} for embedding or loss" * bool(ends)
    if chunk < 1 or (layers + ends) % (stages * chunk):
        place = place_of(settings, name)
        msg = f"{place}: chunks of {chunk} do not divide {with_ends} on {stages} stages.\nChange one of the three."
        raise MigrateError(msg)
    per_stage = (layers + ends) // stages
    note = f"{per_stage} layers of a stage / {chunk}"
    return Derived(per_stage // chunk if per_stage > chunk else None, (name,), note)


def sequence_parallel(settings: Settings) -> Derived | None:
    """Return whether norms and dropout are split; without tensor parallelism the source switches it off itself."""
    given = settings.value("sequence_parallel")
    ranks = tensor_model_parallel_size(settings)
    if given and (ranks is None or ranks.value == 1):
        why = "the program switches it off itself without tensor parallelism"
        return unused("sequence_parallel", why)
    return None if given is None else Derived(given, ("sequence_parallel",))


def overlap_p2p_comm(settings: Settings) -> Derived | None:
    """Return whether the interleaved schedule overlaps its messages; others have none to overlap."""
    given = settings.value("overlap_p2p_comm")
    chunks = virtual_pipeline_model_parallel_size(settings)
    if given is None or chunks is None or chunks.value is None:
        return None
    return Derived(given, ("overlap_p2p_comm",))


def granularity(settings: Settings) -> Derived:
    """Return what is computed again."""
    names = ("checkpoint_activations", "activations_checkpoint_method", "recompute_granularity")
    if settings.value("checkpoint_activations") or settings.value("activations_checkpoint_method"):
        return Derived("full", names[:2])
    if settings.value("recompute_activations"):
        return Derived("selective", ("recompute_activations",))
    given = settings.value("recompute_granularity", "none")
    return Derived(given if given in {"full", "selective"} else "none", names)


def method(settings: Settings) -> Derived | None:
    """Return which layers keep their input; before it could be chosen it was every chunk of layers."""
    if granularity(settings).value != "full":
        return None
    return _first(settings, _METHODS) or Derived("uniform", ("checkpoint_activations",))


def num_layers(settings: Settings) -> Derived | None:
    """Return the layers of a group, or the layers that are computed again."""
    return None if granularity(settings).value != "full" else _first(settings, _LAYERS) or Derived(1, ())


def distribute_saved_activations(settings: Settings) -> Derived | None:
    """Return whether kept activations are split over the tensor-parallel ranks."""
    ranks = tensor_model_parallel_size(settings)
    name = next((name for name in _SPLIT if settings.value(name)), None)
    if name is None:
        return None
    if granularity(settings).value != "full":
        return unused(name, "only whole recomputed layers have such activations")
    if ranks is None or ranks.value == 1:
        return unused(name, "one rank has nothing to split")
    return Derived(True, (name,))


def _first(settings: Settings, names: tuple[str, ...]) -> Derived | None:
    """Return the setting that is stated, else the first with a default."""
    stated: Any = next((name for name in names if name in settings.stated), None)
    name = stated or next((name for name in names if settings.value(name) is not None), None)
    value = None if name is None else settings.value(name)
    return None if name is None or value is None else Derived(value, (name,))


def pipeline_layers(settings: Settings) -> Derived | None:
    """Return the layers of every stage or chunk; None if all have as many."""
    parts = parts_of_layout(settings)
    if parts is not None:
        has_prediction = any("m" in part for part in parts)
        lost = ((STAGE_LAYOUT, "layers of multi-token prediction are left out"),) if has_prediction else ()
        return Derived([part.count("t") for part in parts], (STAGE_LAYOUT,), lost=lost)
    counted = [bool(settings.value(name)) for name in COUNTED]
    return _with_ends(settings, counted) if any(counted) else None


def _with_ends(settings: Settings, counted: list[bool]) -> Derived:
    """Return layers of which the embedding, or the loss, counts as one more."""
    chunks = virtual_pipeline_model_parallel_size(settings)
    parts = pipeline_stages(settings) * (1 if chunks is None else chunks.value or 1)
    total = settings.value("num_layers", 0) + sum(counted)
    if total % parts or parts < 2:
        place = place_of(settings, next(name for name, is_on in zip(COUNTED, counted, strict=True) if is_on))
        msg = (
            f"{place}: {total} layers, with what counts as one, are no multiple of {parts} stages.\nChange one of them."
        )
        raise MigrateError(msg)
    layers = [total // parts] * parts
    layers[0] -= counted[0]
    layers[-1] -= counted[1]
    return Derived(layers, tuple(name for name, is_on in zip(COUNTED, counted, strict=True) if is_on))


FUNCTIONS: Mapping[str, Function] = {
    "parallel.tensor_model_parallel_size": tensor_model_parallel_size,
    "parallel.virtual_pipeline_model_parallel_size": virtual_pipeline_model_parallel_size,
    "parallel.pipeline_layers": pipeline_layers,
    "parallel.sequence_parallel": sequence_parallel,
    "parallel.overlap_p2p_comm": overlap_p2p_comm,
    "recompute.granularity": granularity,
    "recompute.method": method,
    "recompute.num_layers": num_layers,
    "recompute.distribute_saved_activations": distribute_saved_activations,
}
"""By key of the recipe."""
