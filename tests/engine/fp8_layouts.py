"""Layouts of tiny models in fp8, which must train as one process does, for 12 steps."""

from __future__ import annotations

from engine.expert_layouts import EP, MIXTRAL, STEPS, TP_SP, WHOLE
from engine.layouts import (
    BF16,
    DEEPSPEED,
    INTERLEAVED,
    LLAMA,
    OVERLAP_BOTH,
    PP,
    RECOMPUTE,
    SHALLOW,
    TP,
    ZERO1,
    Case,
)

KINDS = {kind: f"precision.fp8={kind}" for kind in ("tensorwise", "rowwise", "block", "mxfp8")}
WIDE = ("model.hidden_size=256", "model.num_query_groups=4", "model.ffn_hidden_size=256")
"""With parts that are whole groups of 128 on two ranks."""

FP8 = {kind: (*LLAMA, *SHALLOW, *WIDE, key) for kind, key in KINDS.items()}
EXPERTS = {kind: (*MIXTRAL, *SHALLOW, *WIDE, "model.moe_ffn_hidden_size=256", key) for kind, key in KINDS.items()}
STAGE_3 = (*DEEPSPEED, "engine.zero.stage=3")
LAYOUTS = {
    "TP": TP,
    "TP, sequence parallel": TP_SP,
    "DP, ZeRO-1": ZERO1,
    "PP, recompute": (*PP, *RECOMPUTE),
    "stage 3": STAGE_3,
}
OF_EXPERTS = {"EP, ZeRO-1": (*EP, *ZERO1), "TP, EP": (*TP_SP, *EP, *WHOLE)}
KEEPING = {
    "ZeRO-1 overlapped": (*ZERO1, *OVERLAP_BOTH),
    "stage 2": (*DEEPSPEED, "engine.zero.stage=2"),
    "PP, interleaved": (*PP, *INTERLEAVED),
}
"""Layouts whose weights are kept in fp8 over several micro-batches of a step, and change between steps."""
SMALL = ("train.micro_batch_size=1", "model.num_layers=4")

FP8_TWO_RANKS = {
    **{f"{kind}, {name}": Case(FP8[kind], layout, last=STEPS) for kind in KINDS for name, layout in LAYOUTS.items()},
    **{
        f"experts, {kind}, {name}": Case(EXPERTS[kind], layout, last=STEPS)
        for kind in KINDS
        for name, layout in OF_EXPERTS.items()
    },
    **{
        f"rowwise, {name}, micro-batches": Case((*FP8["rowwise"], *SMALL), layout, last=STEPS)
        for name, layout in KEEPING.items()
    },
    "bf16, block, TP, sequence parallel": Case((*FP8["block"], *BF16), TP_SP, last=STEPS),
    "gradients of weights as without, TP": Case((*FP8["rowwise"], "precision.fp8_wgrad=false"), TP, last=STEPS),
}
