"""Layouts of the tiny GPT on two and four ranks, which must train as one process does."""

from __future__ import annotations

from dataclasses import dataclass, replace

GPT2: tuple[str, ...] = ()
NEOX = (
    "model.position_embedding_type=rope",
    "model.rotary_percent=0.25",
    "model.parallel_residual=true",
    "model.embedding_layernorm=true",
    "model.untie_embeddings_and_output_weights=true",
    "model.init_method=small_init",
    "model.output_layer_init_method=wang_init",
)
LLAMA = (
    "model.position_embedding_type=rope",
    "model.normalization=RMSNorm",
    "model.activation=swiglu",
    "model.num_query_groups=2",
    "model.add_bias_linear=false",
    "model.untie_embeddings_and_output_weights=true",
)
QWEN = (
    *LLAMA,
    "model.add_qkv_bias=true",
    "model.use_rope_scaling=true",  # of 8 waves 2 stay, 1 is between, 5 are stretched
    "model.original_max_position_embeddings=128",
)
"""Llama with what Qwen 2 and Llama 3.1 have more."""

QWEN3 = (*LLAMA, "model.qk_layernorm=true", "model.kv_channels=24")

EMBEDDING_NORM = ("model.embedding_layernorm=true",)
"""As in BLOOM, but with learned positions, for which sequence parallelism scatters after they are added."""

GATED_BIASES = ("model.activation=swiglu", "model.normalization=RMSNorm", "model.num_query_groups=2")
HEADS = ("model.kv_channels=24", "model.apply_query_key_layer_scaling=true")
COUPLED = ("optimizer.name=adam", "optimizer.weight_decay=0.1", "optimizer.clip_grad=0")
DEEP = ("model.num_layers=8",)
SHALLOW = ("model.num_layers=2",)
PP_OF_FOUR = ("parallel.pipeline_model_parallel_size=4",)
TP = ("parallel.tensor_model_parallel_size=2",)
PP = ("parallel.pipeline_model_parallel_size=2",)
SP = ("parallel.sequence_parallel=true",)
NO_OVERLAP_P2P = ("parallel.overlap_p2p_comm=false",)
FIRST_3 = ("parallel.num_layers_in_first_pipeline_stage=3",)
UNEVEN_CHUNKS = ("parallel.pipeline_layers=[1, 3, 3, 1]",)
INTERLEAVED = ("parallel.virtual_pipeline_model_parallel_size=2",)
ZERO1 = ("parallel.use_distributed_optimizer=true",)
OVERLAP = ("parallel.overlap_grad_reduce=true",)
OVERLAP_BOTH = (*OVERLAP, "parallel.overlap_param_gather=true")
DDP_BUCKETS = ("parallel.ddp_bucket_size=10000",)
RECOMPUTE = ("recompute.granularity=full",)
SELECTIVE = ("recompute.granularity=selective",)
BLOCK = (*RECOMPUTE, "recompute.method=block")
SPLIT_INPUTS = (*RECOMPUTE, "recompute.distribute_saved_activations=true")
MASKED = ("data.reset_attention_mask=true",)
DOCUMENTS = (*MASKED, "data.reset_position_ids=true", "data.eod_mask_loss=true")
"""Sequences of several documents: the last of a batch has no token with loss."""

PER_TOKEN = ("train.calculate_per_token_loss=true",)
DOCUMENTS_PER_TOKEN = (*DOCUMENTS, *PER_TOKEN)
QWEN_PER_TOKEN = (*QWEN, *PER_TOKEN)
WINDOW = ("model.window_size=9",)
QWEN3_AND_2 = (*QWEN3, "model.add_qkv_bias=true", *WINDOW)
ACCUMULATED = ("train.micro_batch_size=1",)
BF16 = ("precision.dtype=bf16",)
BF16_SUMS = (*BF16, "precision.grad_reduce_in_fp32=false")
BF16_SOFTMAX = (*BF16, "model.attention_softmax_in_fp32=false")
FP8 = ("precision.fp8=rowwise",)
FP16 = ("precision.dtype=fp16", "precision.initial_loss_scale=1024", "precision.loss_scale_window=2")
FP16_LOSS = (*FP16, "precision.fp16_lm_cross_entropy=true")

DEEPSPEED = ("engine.name=deepspeed",)
STAGE = [(*DEEPSPEED, f"engine.zero.stage={stage}") for stage in range(4)]
OFFLOAD = ("engine.zero.offload_optimizer.device=cpu", "engine.zero.offload_optimizer.cpu_adam=torch")
OFFLOAD_ALL = (*OFFLOAD, "engine.zero.offload_param.device=cpu")
SMALL_PARTS = (
    "engine.zero.sub_group_size=10000",
    "engine.zero.stage3_param_persistence_threshold=0",
    "engine.zero.stage3_max_live_parameters=10000",
    "engine.zero.reduce_bucket_size=10000",
)
SMALL_BUCKETS = ("engine.zero.reduce_bucket_size=10000", "engine.zero.allgather_bucket_size=10000")
ZERO_OVERLAP = ("engine.zero.overlap_comm=true",)

SAVED_AT = 3
ITERATIONS = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One training of the tiny GPT.

    Attributes:
        model: overrides that say what is computed; one process with them alone gives the same numbers.
        layout: overrides that say how.
        saves: folder into which iteration SAVED_AT is saved.
        loads: folder of a case before from which it starts, at iteration SAVED_AT.
        last: where it ends.
    """

    model: tuple[str, ...]
    layout: tuple[str, ...]
    saves: str = ""
    loads: str = ""
    last: int = ITERATIONS


def _shallow(cases: dict[str, Case]) -> dict[str, Case]:
    """Leave the models two of their four layers, on every commit; those of `_FULL` have four."""
    return {name: replace(case, model=(*case.model, *SHALLOW)) for name, case in cases.items()}


TWO_RANKS = _shallow(
    {
        "TP": Case(GPT2, TP, saves="of-TP"),
        "PP": Case(GPT2, PP, saves="of-PP"),
        "DP, ZeRO-1 overlapped": Case(GPT2, (*ZERO1, *OVERLAP_BOTH, *ACCUMULATED), saves="of-ZeRO-1"),
        "Qwen, TP, sequence parallel": Case(QWEN3_AND_2, (*TP, *SP), last=SAVED_AT),
        "fp8, TP, sequence parallel": Case(FP8, (*TP, *SP), last=2),
        "TP -> PP": Case(GPT2, PP, loads="of-TP"),
        "ZeRO-1 -> ZeRO-1 and TP": Case(GPT2, (*ZERO1, *TP), loads="of-ZeRO-1"),
    }
)
TWO_RANKS_FULL = {
    "documents, DP, a micro-batch without loss": Case((*DOCUMENTS, *ACCUMULATED), (), last=SAVED_AT),
    "bf16, DP, ZeRO-1": Case(BF16, ZERO1, last=SAVED_AT),
    "per token, DP, ZeRO-1 overlapped": Case(
        PER_TOKEN, (*ZERO1, *OVERLAP_BOTH, *DDP_BUCKETS, *ACCUMULATED), last=SAVED_AT
    ),
    "PP, interleaved, uneven": Case(DEEP, (*PP, *INTERLEAVED, *UNEVEN_CHUNKS), last=SAVED_AT),
    "PP, 3 and 1 layers": Case(GPT2, (*PP, *FIRST_3), saves="of-3-and-1"),
    "DP, overlapped": Case(GPT2, (*OVERLAP, *ACCUMULATED)),
    "TP, recompute": Case(GPT2, (*TP, *SPLIT_INPUTS), last=SAVED_AT),
    "PP, masks of documents": Case(MASKED, PP, last=SAVED_AT),
    "PP, interleaved, one message after the other": Case(GPT2, (*PP, *INTERLEAVED, *NO_OVERLAP_P2P), last=SAVED_AT),
    "3 and 1 layers -> 2 and 2": Case(GPT2, PP, loads="of-3-and-1"),
    "per token, PP interleaved": Case(PER_TOKEN, (*PP, *INTERLEAVED, *ACCUMULATED), last=SAVED_AT),
    "NeoX, PP interleaved": Case(NEOX, (*PP, *INTERLEAVED), last=SAVED_AT),
    "DP": Case(GPT2, ACCUMULATED, last=SAVED_AT),
    "TP, sequence parallel": Case(GPT2, (*TP, *SP)),
    "Qwen 3, TP": Case(QWEN3, TP, last=SAVED_AT),
    "Qwen 3, PP interleaved, ZeRO-1": Case(QWEN3, (*PP, *INTERLEAVED, *ZERO1), last=SAVED_AT),
    "QK layer norm, TP": Case(("model.qk_layernorm=true",), TP, last=SAVED_AT),
    "Qwen, TP, sequence parallel and rope scaling": Case(QWEN, (*TP, *SP), last=SAVED_AT),
    "NeoX, TP, sequence parallel": Case(NEOX, (*TP, *SP), last=SAVED_AT),
    "PP -> TP": Case(SHALLOW, TP, loads="of-PP"),
    "ZeRO-1 -> ZeRO-1 in small buckets": Case(SHALLOW, (*ZERO1, *OVERLAP_BOTH, *DDP_BUCKETS), loads="of-ZeRO-1"),
    "DP, ZeRO-1": Case(GPT2, ZERO1),
    "PP, interleaved": Case(GPT2, (*PP, *INTERLEAVED)),
    "NeoX, TP": Case(NEOX, TP, last=SAVED_AT),
    "per token, DP": Case(PER_TOKEN, ACCUMULATED, last=SAVED_AT),
    "TP -> DP": Case(SHALLOW, (), loads="of-TP"),
    "3 and 1 layers -> 1 and 3": Case(GPT2, (*PP, "parallel.pipeline_layers=[1, 3]"), loads="of-3-and-1"),
    "documents, DP, ZeRO-1 overlapped": Case(DOCUMENTS, (*ZERO1, *OVERLAP_BOTH), last=SAVED_AT),
    "documents, TP, sequence parallel": Case(DOCUMENTS, (*TP, *SP), last=SAVED_AT),
    "documents, PP, interleaved, recompute": Case(DOCUMENTS, (*PP, *INTERLEAVED, *RECOMPUTE), last=SAVED_AT),
    "documents per token, DP, overlapped": Case(DOCUMENTS_PER_TOKEN, (*OVERLAP, *ACCUMULATED), last=SAVED_AT),
    "documents per token, TP, sequence parallel": Case(DOCUMENTS_PER_TOKEN, (*TP, *SP, *ACCUMULATED), last=SAVED_AT),
    "documents per token, PP": Case(DOCUMENTS_PER_TOKEN, (*PP, *ACCUMULATED), last=SAVED_AT),
    "embedding norm, TP, sequence parallel": Case(EMBEDDING_NORM, (*TP, *SP), last=SAVED_AT),
    "embedding norm, PP": Case(EMBEDDING_NORM, PP, last=SAVED_AT),
    "gated with biases, TP, sequence parallel": Case(GATED_BIASES, (*TP, *SP), saves="of-gated", last=SAVED_AT),
    "gated with biases, TP -> DP": Case(GATED_BIASES, (), loads="of-gated"),
    "gated with biases, TP -> PP": Case(GATED_BIASES, PP, loads="of-gated"),
    "heads, TP": Case(HEADS, TP, last=SAVED_AT),
    "heads, PP, interleaved": Case(HEADS, (*PP, *INTERLEAVED), last=SAVED_AT),
    "coupled decay, ZeRO-1": Case(COUPLED, ZERO1, last=SAVED_AT),
    "coupled decay, TP": Case(COUPLED, TP, last=SAVED_AT),
    "coupled decay, PP": Case(COUPLED, PP, last=SAVED_AT),
    "bf16, PP, interleaved": Case(BF16, (*PP, *INTERLEAVED), last=SAVED_AT),
    "bf16, TP, sequence parallel": Case(BF16, (*TP, *SP), last=SAVED_AT),
    "bf16 softmax, TP": Case(BF16_SOFTMAX, TP, last=SAVED_AT),
    "fp16 loss, TP, sequence parallel": Case(FP16_LOSS, (*TP, *SP), last=SAVED_AT),
    "fp16, PP": Case(FP16, PP, last=SAVED_AT),
    "fp16, ZeRO-1": Case(FP16, ZERO1, last=SAVED_AT),
    "TP, sequence parallel, selective recompute": Case(GPT2, (*TP, *SP, *SELECTIVE), last=SAVED_AT),
    "NeoX, TP, sequence parallel, recompute": Case(NEOX, (*TP, *SP, *RECOMPUTE), last=SAVED_AT),
    "PP, interleaved, recompute by blocks": Case(GPT2, (*PP, *INTERLEAVED, *BLOCK), last=SAVED_AT),
    "PP, 3 and 1 layers, recompute by blocks": Case(
        GPT2, (*PP, *FIRST_3, *BLOCK, "recompute.num_layers=2"), last=SAVED_AT
    ),
}
"""Further combinations, some of which load checkpoints of TWO_RANKS."""
FOUR_RANKS = {
    "PP interleaved x DP, ZeRO-1 overlapped": Case(
        GPT2, (*PP, *INTERLEAVED, *ZERO1, *OVERLAP_BOTH, *ACCUMULATED), last=SAVED_AT
    ),
}
FOUR_RANKS_FULL = {
    "TP x DP, ZeRO-1": Case(GPT2, (*TP, *ZERO1), last=SAVED_AT),
    "PP of four, interleaved": Case(DEEP, (*PP_OF_FOUR, *INTERLEAVED, *ACCUMULATED), last=SAVED_AT),
    "ZeRO-1 of two -> ZeRO-1 of four": Case(SHALLOW, (*ZERO1, *ACCUMULATED), loads="of-ZeRO-1"),
    "NeoX, TP x PP interleaved, sequence parallel": Case(NEOX, (*TP, *PP, *INTERLEAVED, *SP), last=SAVED_AT),
    "TP x PP": Case(GPT2, (*TP, *PP)),
    "PP of four, uneven": Case(DEEP, (*PP_OF_FOUR, "parallel.pipeline_layers=[1, 3, 2, 2]"), last=SAVED_AT),
    "PP x DP, overlapped": Case(GPT2, (*PP, *OVERLAP, *ACCUMULATED), last=SAVED_AT),
    "PP interleaved x DP, overlapped": Case(GPT2, (*PP, *INTERLEAVED, *OVERLAP, *ACCUMULATED), last=SAVED_AT),
    "3 and 1 layers x DP, ZeRO-1 overlapped": Case(
        GPT2, (*PP, *FIRST_3, *ZERO1, *OVERLAP_BOTH, *ACCUMULATED), last=SAVED_AT
    ),
    "documents per token, PP interleaved x DP, ZeRO-1 overlapped": Case(
        DOCUMENTS_PER_TOKEN,
        (*PP, *INTERLEAVED, *ZERO1, *OVERLAP_BOTH, *DDP_BUCKETS, *ACCUMULATED),
        last=SAVED_AT,
    ),
    "Qwen, TP x DP, sequence parallel, ZeRO-1 overlapped": Case(QWEN, (*TP, *SP, *ZERO1, *OVERLAP_BOTH), last=SAVED_AT),
    "documents per token, TP x DP, sequence parallel": Case(
        DOCUMENTS_PER_TOKEN, (*TP, *SP, *OVERLAP, *ACCUMULATED), last=SAVED_AT
    ),
    "documents, TP x PP, sequence parallel": Case(DOCUMENTS, (*TP, *SP, *PP), last=SAVED_AT),
    "embedding norm, TP x PP, sequence parallel": Case(EMBEDDING_NORM, (*TP, *SP, *PP), last=SAVED_AT),
}
ONE_RANK = _shallow(
    {
        "TP -> one": Case(GPT2, (), loads="of-TP"),
        "PP -> one": Case(GPT2, (), loads="of-PP"),
        "ZeRO-1 -> one": Case(GPT2, ZERO1, loads="of-ZeRO-1"),
    }
)

DEEPSPEED_TWO_RANKS = _shallow(
    {
        "stage 0": Case(GPT2, (*STAGE[0], *ACCUMULATED), saves="of-stage-0"),
        "stage 3": Case(GPT2, (*STAGE[3], *ACCUMULATED), saves="of-stage-3"),
        "NeoX, stage 3, TP, sequence parallel": Case(NEOX, (*STAGE[3], *TP, *SP), last=SAVED_AT),
        "Qwen 3 with a window, stage 1, TP": Case((*QWEN3, *WINDOW), (*STAGE[1], *TP), last=SAVED_AT),
        "stage 3 -> 1, TP": Case(GPT2, (*STAGE[1], *TP), loads="of-stage-3"),
    }
)
DEEPSPEED_TWO_RANKS_FULL = {
    "Qwen per token, stage 3": Case(QWEN_PER_TOKEN, (*STAGE[3], *ACCUMULATED), last=SAVED_AT, saves="of-Qwen"),
    "Qwen per token, stage 3 -> megatron": Case(QWEN_PER_TOKEN, ACCUMULATED, loads="of-Qwen"),
    "fp16, stage 3, TP": Case(FP16, (*STAGE[3], *TP), last=SAVED_AT),
    "bf16, stage 0, TP": Case(BF16_SUMS, (*STAGE[0], *TP), last=SAVED_AT),
    "stage 3, in small parts, masks of documents": Case(MASKED, (*STAGE[3], *SMALL_PARTS, *ACCUMULATED), last=SAVED_AT),
    "bf16, stage 2, offload": Case(BF16, (*STAGE[2], *OFFLOAD), last=SAVED_AT),
    "stage 1": Case(GPT2, (*STAGE[1], *ACCUMULATED), last=SAVED_AT),
    "stage 3, TP, recompute": Case(GPT2, (*STAGE[3], *TP, *SPLIT_INPUTS), last=SAVED_AT),
    "stage 3, offload": Case(SHALLOW, (*STAGE[3], *OFFLOAD_ALL, *ACCUMULATED), saves="of-offload"),
    "offload -> megatron, ZeRO-1": Case(SHALLOW, ZERO1, loads="of-offload"),
    "offload -> 0": Case(SHALLOW, STAGE[0], loads="of-offload"),
    "stage 1, overlapped": Case(SHALLOW, (*STAGE[1], *ZERO_OVERLAP, *SMALL_BUCKETS, *ACCUMULATED), saves="of-stage-1"),
    "bf16, stage 3": Case((*BF16, *SHALLOW), STAGE[3], last=SAVED_AT, saves="of-bf16"),
    "bf16, stage 3 -> megatron, ZeRO-1": Case((*BF16, *SHALLOW), ZERO1, loads="of-bf16", last=SAVED_AT + 2),
    "stage 1 -> 3": Case(SHALLOW, STAGE[3], loads="of-stage-1"),
    "stage 3, in small parts, four layers": Case(GPT2, (*STAGE[3], *SMALL_PARTS, *ACCUMULATED), last=SAVED_AT),
    "stage 3, offload, four layers": Case(GPT2, (*STAGE[3], *OFFLOAD_ALL, *ACCUMULATED), saves="of-four-layers"),
    "offload -> 1, four layers": Case(GPT2, STAGE[1], loads="of-four-layers"),
    "stage 2": Case(GPT2, (*STAGE[2], *ACCUMULATED), saves="of-stage-2"),
    **{
        f"Qwen 3, stage {stage}, TP, sequence parallel": Case(QWEN3, (*of, *TP, *SP), last=SAVED_AT)
        for stage, of in enumerate(STAGE)
    },
    "stage 1, TP": Case(GPT2, (*STAGE[1], *TP), saves="of-stage-1-TP"),
    "stage 2, offload": Case(GPT2, (*STAGE[2], *OFFLOAD, *ACCUMULATED)),
    "stage 3, TP": Case(GPT2, (*STAGE[3], *TP)),
    "NeoX, stage 2, TP, sequence parallel": Case(NEOX, (*STAGE[2], *TP, *SP), last=SAVED_AT),
    "per token, stage 1": Case(PER_TOKEN, (*STAGE[1], *ACCUMULATED), last=SAVED_AT),
    "bf16, stage 1": Case(BF16, STAGE[1], last=SAVED_AT),
    "stage 1, TP -> 2": Case(GPT2, STAGE[2], loads="of-stage-1-TP"),
    "stage 2 -> megatron, PP": Case(GPT2, PP, loads="of-stage-2"),
    **{
        f"documents, stage {stage}, a micro-batch without loss": Case((*DOCUMENTS, *ACCUMULATED), of, last=SAVED_AT)
        for stage, of in enumerate(STAGE)
    },
    **{
        f"embedding norm, stage {stage}, TP, sequence parallel": Case(EMBEDDING_NORM, (*of, *TP, *SP), last=SAVED_AT)
        for stage, of in enumerate(STAGE)
    },
    "gated with biases, stage 3, TP, sequence parallel": Case(GATED_BIASES, (*STAGE[3], *TP, *SP), last=SAVED_AT),
    "Qwen, stage 2, TP, sequence parallel, recompute": Case(QWEN, (*STAGE[2], *TP, *SP, *RECOMPUTE), last=SAVED_AT),
    "NeoX, stage 1, TP, sequence parallel, selective recompute": Case(
        NEOX, (*STAGE[1], *TP, *SP, *SELECTIVE), last=SAVED_AT
    ),
    "coupled decay, stage 0, TP": Case(COUPLED, (*STAGE[0], *TP), last=SAVED_AT),
    "coupled decay, stage 2": Case(COUPLED, STAGE[2], last=SAVED_AT),
    "heads, stage 2, TP": Case(HEADS, (*STAGE[2], *TP), last=SAVED_AT),
    "bf16, stage 2, TP, sequence parallel": Case(BF16, (*STAGE[2], *TP, *SP), last=SAVED_AT),
    "fp16 loss, stage 1, TP": Case(FP16_LOSS, (*STAGE[1], *TP), last=SAVED_AT),
}
"""Further combinations, most of four layers; those of two load a checkpoint of DEEPSPEED_TWO_RANKS."""
DEEPSPEED_FOUR_RANKS = _shallow(
    {
        "stage 3, TP x DP": Case(GPT2, (*STAGE[3], *TP), saves="of-TP-DP"),
        "stage 3 of two -> stage 3 of four": Case(GPT2, (*STAGE[3], *ACCUMULATED), loads="of-stage-3"),
    }
)
DEEPSPEED_FOUR_RANKS_FULL = {
    "stage 0 of two -> stage 2 of four": Case(SHALLOW, (*STAGE[2], *ACCUMULATED), loads="of-stage-0"),
    "stage 1, TP x DP": Case(GPT2, (*STAGE[1], *TP), last=SAVED_AT),
    "documents per token, stage 2, TP x DP, sequence parallel": Case(
        DOCUMENTS_PER_TOKEN, (*STAGE[2], *TP, *SP, *ACCUMULATED), last=SAVED_AT
    ),
    "embedding norm, stage 3, TP x DP, sequence parallel": Case(EMBEDDING_NORM, (*STAGE[3], *TP, *SP), last=SAVED_AT),
}
DEEPSPEED_FOUR_TO_ONE = _shallow({"stage 3, TP x DP -> one, stage 2": Case(GPT2, STAGE[2], loads="of-TP-DP")})
DEEPSPEED_ONE_RANK = _shallow({"stage 0 -> megatron": Case(GPT2, (), loads="of-stage-0")})

COMPILE = ("kernels.compile=layer",)
COMPILED = {
    name: Case(model, (*layout, *COMPILE), last=SAVED_AT + 2)
    for name, model, layout in [
        ("interleaved, parallel residual, selective recompute", NEOX, (*PP, *INTERLEAVED, *SELECTIVE)),
        ("distributed optimizer, overlapped, bf16", BF16, (*ZERO1, *OVERLAP)),
        ("tensor", GPT2, TP),
        ("sequence", GPT2, (*TP, *SP)),
        ("sequence, gated", LLAMA, (*TP, *SP)),
        ("sequence, gated, recompute", LLAMA, (*TP, *SP, *RECOMPUTE)),
        ("recompute", GPT2, (*TP, *RECOMPUTE)),
        ("selective recompute, bf16", BF16, (*TP, *SELECTIVE)),
        ("interleaved, parallel residual", NEOX, (*PP, *INTERLEAVED)),
        ("distributed optimizer, overlapped", GPT2, (*ZERO1, *OVERLAP)),
        ("parallel residual", NEOX, TP),
        ("gated", LLAMA, TP),
        ("pipeline", GPT2, PP),
        ("data", GPT2, OVERLAP),
        ("distributed optimizer", GPT2, ZERO1),
        ("bf16", BF16, TP),
    ]
}
"""Each feature alone or in pairs; all in `make test-all`, since compiling takes most of the time."""
