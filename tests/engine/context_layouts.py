"""Layouts of tiny models under context parallelism, which must train as one process does: 12 steps, and checkpoints."""

from __future__ import annotations

from engine.expert_layouts import BALANCED, BY_SEQUENCE, EP, MIXTRAL, STEPS
from engine.layouts import (
    ACCUMULATED,
    BF16,
    DOCUMENTS,
    DOCUMENTS_PER_TOKEN,
    FP16,
    GPT2,
    INTERLEAVED,
    LLAMA,
    MASKED,
    NEOX,
    OVERLAP_BOTH,
    PER_TOKEN,
    PP,
    QWEN,
    QWEN3,
    RECOMPUTE,
    SAVED_AT,
    SELECTIVE,
    SHALLOW,
    SP,
    STAGE,
    TP,
    WINDOW,
    ZERO1,
    Case,
)

CP = ("parallel.context_parallel_size=2",)
CP4 = ("parallel.context_parallel_size=4",)
OF_TWO_LAYERS = (*LLAMA, *MASKED, *PER_TOKEN, *SHALLOW)
LLAMA_DOCUMENTS = (*LLAMA, *MASKED, "data.eod_mask_loss=true")
SQUARE = ("kernels.attention=softmax",)
TRIANGLE = ("kernels.attention=triangle", "kernels.triangle_block_size=8")

CONTEXT_TWO_RANKS = {
    "documents per token, CP, ZeRO-1": Case(OF_TWO_LAYERS, (*CP, *ZERO1), saves="of-CP"),
    "by sequence, per token, CP, EP": Case((*BY_SEQUENCE, *PER_TOKEN, *SHALLOW), (*CP, *EP), last=SAVED_AT),
}
CONTEXT_TWO_RANKS_FULL = {
    "CP": Case(GPT2, CP, last=STEPS),
    "CP -> TP": Case(OF_TWO_LAYERS, TP, loads="of-CP"),
    "Llama, CP": Case(LLAMA, CP, last=STEPS),
    "Qwen, CP, ZeRO-1 overlapped": Case(QWEN, (*CP, *ZERO1, *OVERLAP_BOTH, *ACCUMULATED), last=STEPS),
    "Qwen 3, CP, recompute": Case(QWEN3, (*CP, *RECOMPUTE), last=STEPS),
    "NeoX, CP, selective recompute": Case(NEOX, (*CP, *SELECTIVE), last=STEPS),
    "documents, CP": Case(DOCUMENTS, CP, last=STEPS),
    "documents, CP, selective recompute": Case(LLAMA_DOCUMENTS, (*CP, *SELECTIVE), last=STEPS),
    "documents per token, CP, one sample": Case(DOCUMENTS_PER_TOKEN, (*CP, *ACCUMULATED), last=STEPS),
    "per token, CP": Case(PER_TOKEN, CP, last=STEPS),
    "window, CP": Case((*LLAMA, *WINDOW), CP, last=STEPS),
    "window, documents, CP": Case((*LLAMA, *WINDOW, *MASKED), CP, last=STEPS),
    "softmax kernel, CP": Case((*LLAMA, *SQUARE), CP, last=STEPS),
    "softmax kernel, documents, CP": Case((*LLAMA, *MASKED, *SQUARE), CP, last=STEPS),
    "triangle, documents, CP": Case((*LLAMA, *MASKED, *TRIANGLE), CP, last=STEPS),
    "Mixtral, CP": Case(MIXTRAL, CP, last=STEPS),
    "Mixtral, CP, EP, ZeRO-1": Case(MIXTRAL, (*CP, *EP, *ZERO1), last=STEPS),
    "auxiliary loss, CP": Case(BALANCED, CP, last=STEPS),
    "auxiliary loss per token, CP, EP": Case((*BALANCED, *PER_TOKEN), (*CP, *EP), last=STEPS),
    "fp16, CP": Case((*FP16, *LLAMA), CP, last=SAVED_AT),
    "fp16, documents, CP, ZeRO-1": Case((*FP16, *LLAMA_DOCUMENTS), (*CP, *ZERO1), last=SAVED_AT),
    "bf16, CP, ZeRO-1": Case((*BF16, *LLAMA), (*CP, *ZERO1), last=SAVED_AT),
    **{
        f"documents per token, stage {stage}, CP": Case(DOCUMENTS_PER_TOKEN, (*of, *CP, *ACCUMULATED), last=STEPS)
        for stage, of in enumerate(STAGE)
    },
    "stage 3, CP": Case(LLAMA, (*STAGE[3], *CP), saves="of-stage-3-CP"),
    "stage 3, CP -> CP": Case(LLAMA, CP, loads="of-stage-3-CP"),
}
DROPPED = (*GPT2, *CP, "model.hidden_dropout=0.1", "model.attention_dropout=0.1")
CONTEXT_DROPOUT_FULL = {
    "dropout": Case(DROPPED, (), saves="of-dropout"),
    "resumed": Case(DROPPED, (), loads="of-dropout"),
    "recompute": Case(DROPPED, RECOMPUTE),
    "selective recompute": Case(DROPPED, SELECTIVE),
    "no dropout": Case((*GPT2, *CP), ()),
}
"""Ranks draw their own random numbers: no other layout has the same ones."""
CONTEXT_FOUR_RANKS_FULL = {
    "CP of four": Case(LLAMA, CP4, last=STEPS),
    "documents per token, CP of four": Case((*LLAMA_DOCUMENTS, *PER_TOKEN), CP4, last=STEPS),
    "CP x TP": Case(LLAMA, (*CP, *TP), last=STEPS),
    "documents, CP x TP, sequence parallel": Case(LLAMA_DOCUMENTS, (*CP, *TP, *SP), last=STEPS),
    "documents, CP x PP": Case(LLAMA_DOCUMENTS, (*CP, *PP), last=STEPS),
    "per token, CP x PP interleaved, ZeRO-1": Case((*LLAMA, *PER_TOKEN), (*CP, *PP, *INTERLEAVED, *ZERO1), last=STEPS),
    "documents per token, CP x DP, ZeRO-1": Case(
        (*LLAMA_DOCUMENTS, *PER_TOKEN), (*CP, *ZERO1, *OVERLAP_BOTH, *ACCUMULATED), last=STEPS
    ),
    "Mixtral, documents, CP x EP x DP": Case((*MIXTRAL, *MASKED), (*CP, *EP, *ZERO1), last=STEPS),
    "by sequence, CP x TP, EP, sequence parallel": Case(BY_SEQUENCE, (*CP, *TP, *SP, *EP), last=STEPS),
    "stage 2, CP x DP": Case(LLAMA, (*STAGE[2], *CP, *ACCUMULATED), last=STEPS),
    "stage 3, CP x TP, sequence parallel": Case(LLAMA, (*STAGE[3], *CP, *TP, *SP), last=STEPS),
}
CONTEXT_ONE_RANK = {"CP, ZeRO-1 -> one": Case(OF_TWO_LAYERS, (), loads="of-CP")}
