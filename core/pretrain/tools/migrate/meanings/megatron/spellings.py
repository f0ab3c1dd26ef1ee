"""Flags whose name on a command line is not the one under which their value is kept (argparse's dest).

A switch that turns something off is not listed where its name is the dest after "no_" or "disable_".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Spelled(NamedTuple):
    """A flag's dest.

    Attributes:
        name: dest.
        given: value of a switch; None for a flag that takes a value.
    """

    name: str
    given: Any = None


SPELLINGS: Mapping[str, Spelled] = {
    "bert_no_binary_head": Spelled("bert_binary_head", given=False),
    "disable_bias_linear": Spelled("add_bias_linear", given=False),
    "disable_gloo_process_groups": Spelled("use_gloo_process_groups", given=False),
    "disable_msc": Spelled("disable_msc_deprecated", given=True),
    "fp4_format": Spelled("fp4"),
    "fp8_format": Spelled("fp8"),
    "inference_dynamic_batching_prefix_caching": Spelled(
        "inference_dynamic_batching_enable_prefix_caching", given=True
    ),
    "microbatch_group_size_per_virtual_pipeline_stage": Spelled("microbatch_group_size_per_vp_stage"),
    "muon_no_split_qkv": Spelled("muon_split_qkv", given=False),
    "no_barrier_with_level_1_timing": Spelled("barrier_with_L1_time", given=False),
    "no_contiguous_buffers_in_local_ddp": Spelled("use_contiguous_buffers_in_local_ddp", given=False),
    "no_initialization": Spelled("perform_initialization", given=False),
    "no_log_learnig_rate_to_tensorboard": Spelled("log_learning_rate_to_tensorboard", given=False),
    "no_one_logger": Spelled("enable_one_logger", given=False),
    "no_overlap_p2p_communication": Spelled("overlap_p2p_comm", given=False),
    "no_position_embedding": Spelled("add_position_embedding", given=False),
    "no_query_key_layer_scaling": Spelled("apply_query_key_layer_scaling", given=False),
    "no_rope_fusion": Spelled("apply_rope_fusion", given=False),
    "output_logit_dtype": Spelled("logit_dtype"),
    "overlap_p2p_communication": Spelled("overlap_p2p_comm", given=True),
    "overlap_p2p_communication_warmup_flush": Spelled("overlap_p2p_comm_warmup_flush", given=True),
    "persistent_save_interval": Spelled("save_interval"),
    "retro_no_verify_neighbor_count": Spelled("retro_verify_neighbor_count", given=False),
    "rotary_position_embeddings_theta": Spelled("rope_theta"),
    "torch_fsdp2_no_reshard_after_forward": Spelled("torch_fsdp2_reshard_after_forward", given=False),
    "use_nccl_ub": Spelled("nccl_ub", given=True),
    "use_same_sampling_seed_across_dp_ranks": Spelled("offset_sampling_seed_by_dp_rank", given=False),
    "vocab": Spelled("vocab_file"),
}
"""By the flag without its leading dashes, with underscores."""


def spelled(flag: str, known: Mapping[str, object]) -> Spelled:
    """Return the dest of a flag, and the value of one that turns something off.

    Args:
        flag: without its leading dashes, with underscores.
        known: dests.
    """
    if flag in known:
        return Spelled(flag)
    if flag in SPELLINGS:
        return SPELLINGS[flag]
    on = flag.removeprefix("no_").removeprefix("disable_")
    name = SPELLINGS[on].name if on in SPELLINGS else on
    return Spelled(name, given=False) if on != flag and name in known else Spelled(flag)
