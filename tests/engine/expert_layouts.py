"""Layouts of tiny models with experts, which must train as one process does: 12 steps, and across checkpoints."""

from __future__ import annotations

from engine.layouts import (
    BF16,
    FIRST_3,
    INTERLEAVED,
    LLAMA,
    OVERLAP_BOTH,
    PER_TOKEN,
    PP,
    RECOMPUTE,
    SAVED_AT,
    SELECTIVE,
    SHALLOW,
    SP,
    TP,
    ZERO1,
    Case,
)

STEPS = 12
MIXTRAL = (*LLAMA, "model.num_experts=8", "model.moe_ffn_hidden_size=48", "train.micro_batch_size=2")
MIXTRAL_IN_FOUR = (*MIXTRAL, "model.num_query_groups=4")
DEEPSEEK = (
    *MIXTRAL,
    "model.qk_layernorm=true",
    "model.moe_router_topk=3",
    "model.moe_router_score_function=sigmoid",
    "model.moe_router_enable_expert_bias=true",
    "model.moe_router_num_groups=4",
    "model.moe_router_group_topk=2",
    "model.moe_router_topk_scaling_factor=2.5",
    "model.moe_shared_expert_intermediate_size=64",
    "model.first_k_dense_replace=1",
)
"""The router of DeepSeek-V3 and GLM-4.5."""

BALANCED = (*MIXTRAL, "model.moe_router_load_balancing_type=aux_loss", "model.moe_aux_loss_coeff=0.1")
BY_SEQUENCE = (
    *DEEPSEEK,
    "model.moe_router_load_balancing_type=seq_aux_loss",
    "model.moe_aux_loss_coeff=0.1",
    "model.moe_z_loss_coeff=0.01",
)
CAPACITY = ("model.moe_expert_capacity_factor=0.75",)
EP = ("parallel.expert_model_parallel_size=2",)
EP4 = ("parallel.expert_model_parallel_size=4",)
WHOLE = ("parallel.expert_tensor_parallel_size=1",)
TP_SP = (*TP, *SP)

OF_TWO_LAYERS = (*DEEPSEEK, *SHALLOW)
EXPERTS_TWO_RANKS = {
    "EP, ZeRO-1": Case(OF_TWO_LAYERS, (*EP, *ZERO1), saves="of-EP"),
    "by sequence, per token, capacity, TP with whole experts, EP": Case(
        (*BY_SEQUENCE, *PER_TOKEN, *CAPACITY, *SHALLOW), (*TP_SP, *EP, *WHOLE), last=SAVED_AT
    ),
}
EXPERTS_TWO_RANKS_FULL = {
    "EP, ZeRO-1, longer": Case(DEEPSEEK, (*EP, *ZERO1), last=STEPS),
    "EP -> TP with whole experts": Case(OF_TWO_LAYERS, (*TP_SP, *WHOLE), loads="of-EP", last=STEPS),
    "EP -> PP": Case(OF_TWO_LAYERS, PP, loads="of-EP", last=STEPS),
    "EP": Case(MIXTRAL, EP, last=STEPS, saves="of-EP-alone"),
    "EP -> EP, ZeRO-1": Case(MIXTRAL, (*EP, *ZERO1), loads="of-EP-alone", last=STEPS),
    "DP": Case(MIXTRAL, (), last=STEPS),
    "DP, ZeRO-1 overlapped": Case(MIXTRAL, (*ZERO1, *OVERLAP_BOTH), last=STEPS),
    "EP, ZeRO-1 overlapped": Case(MIXTRAL, (*EP, *ZERO1, *OVERLAP_BOTH), last=STEPS),
    "TP": Case(MIXTRAL, TP_SP, last=STEPS),
    "TP with whole experts": Case(MIXTRAL, (*TP_SP, *WHOLE), last=STEPS),
    "TP with whole experts, ZeRO-1": Case(MIXTRAL, (*TP_SP, *WHOLE, *ZERO1), last=STEPS),
    "TP with whole experts, ZeRO-1 overlapped": Case(MIXTRAL, (*TP_SP, *WHOLE, *ZERO1, *OVERLAP_BOTH), last=STEPS),
    "TP, EP": Case(MIXTRAL, (*TP_SP, *EP, *WHOLE), last=STEPS),
    "PP": Case(DEEPSEEK, PP, saves="of-PP", last=STEPS),
    "PP -> EP": Case(DEEPSEEK, EP, loads="of-PP", last=STEPS),
    "PP, interleaved": Case(DEEPSEEK, (*PP, *INTERLEAVED), last=STEPS),
    "PP, interleaved, ZeRO-1": Case(DEEPSEEK, (*PP, *INTERLEAVED, *ZERO1), last=STEPS),
    "DeepSeek, TP": Case(DEEPSEEK, TP_SP, last=STEPS),
    "DeepSeek, EP, recompute": Case(DEEPSEEK, (*EP, *RECOMPUTE), last=STEPS),
    "DeepSeek, EP, selective recompute": Case(DEEPSEEK, (*EP, *SELECTIVE), last=STEPS),
    "a layer in two, EP": Case((*MIXTRAL, "model.moe_layer_freq=2"), EP, last=STEPS),
    **{
        f"{name}{', per token' if per_token else ''}, {layout}": Case((*model, *per_token), how, last=STEPS)
        for name, model in {"balanced": BALANCED, "by sequence": BY_SEQUENCE}.items()
        for per_token in ((), PER_TOKEN)
        for layout, how in {"EP": EP, "TP": TP_SP, "TP, EP": (*TP_SP, *EP, *WHOLE), "PP": PP}.items()
    },
    **{
        f"capacity, {layout}": Case((*BALANCED, *CAPACITY), how, last=STEPS)
        for layout, how in {"EP, ZeRO-1": (*EP, *ZERO1), "TP": TP_SP, "PP, recompute": (*PP, *RECOMPUTE)}.items()
    },
    "capacity by position, TP, EP": Case(
        (*DEEPSEEK, *CAPACITY, "model.moe_token_drop_policy=position"), (*TP_SP, *EP, *WHOLE), last=STEPS
    ),
    "bf16, EP, ZeRO-1": Case((*MIXTRAL, *BF16), (*EP, *ZERO1), last=STEPS),
    "bf16, DeepSeek, TP": Case((*DEEPSEEK, *BF16), TP_SP, last=STEPS),
}
EXPERTS_FOUR_RANKS = {
    "EP x TP, shared": Case(DEEPSEEK, (*EP, *TP_SP, *ZERO1), saves="of-EP-TP", last=STEPS),
}
EXPERTS_FOUR_RANKS_FULL = {
    "EP of four": Case(MIXTRAL, EP4, last=STEPS),
    "EP of four, whole, TP": Case(MIXTRAL, (*EP4, *TP_SP, *WHOLE, *ZERO1), last=STEPS),
    "EP x TP": Case(MIXTRAL, (*EP, *TP_SP), last=STEPS),
    "EP x TP with whole experts": Case(DEEPSEEK, (*EP, *TP_SP, *WHOLE), last=STEPS),
    "EP x PP, a stage without experts": Case(
        (*DEEPSEEK, "model.first_k_dense_replace=2"), (*EP, *PP), saves="of-dense-stage", last=STEPS
    ),
    "TP of four, experts on two": Case(
        MIXTRAL_IN_FOUR,
        ("parallel.tensor_model_parallel_size=4", *SP, "parallel.expert_tensor_parallel_size=2"),
        last=STEPS,
    ),
    "EP x PP, 3 and 1 layers": Case(DEEPSEEK, (*EP, *PP, *FIRST_3), last=STEPS),
    "bf16, EP x DP, recompute": Case((*DEEPSEEK, *BF16), (*EP, *RECOMPUTE), last=STEPS),
    "EP x PP": Case(DEEPSEEK, (*EP, *PP, *ZERO1), last=STEPS),
    "EP x PP interleaved": Case(DEEPSEEK, (*EP, *PP, *INTERLEAVED), last=STEPS),
    "EP x DP": Case(DEEPSEEK, EP, last=STEPS),
    "capacity, EP x TP": Case((*DEEPSEEK, *CAPACITY), (*EP, *TP_SP), last=STEPS),
    "EP x DP, ZeRO-1 overlapped": Case(DEEPSEEK, (*EP, *ZERO1, *OVERLAP_BOTH), last=STEPS),
    "by sequence, per token, EP x TP": Case((*BY_SEQUENCE, *PER_TOKEN), (*EP, *TP_SP), last=STEPS),
}
EXPERTS_ONE_RANK = {
    "EP x TP -> one": Case(DEEPSEEK, (), loads="of-EP-TP", last=STEPS),
    "EP -> one, ZeRO-1": Case(OF_TWO_LAYERS, ZERO1, loads="of-EP", last=STEPS),
}
