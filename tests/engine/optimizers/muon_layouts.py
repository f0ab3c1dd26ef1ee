"""Layouts in which Muon must train as one process does: matrices cut over ranks are made orthogonal whole."""

from __future__ import annotations

from engine.context_layouts import CP
from engine.expert_layouts import DEEPSEEK, EP, MIXTRAL, TP_SP, WHOLE
from engine.layouts import (
    ACCUMULATED,
    BF16,
    FP16,
    NEOX,
    OVERLAP,
    PP,
    QWEN,
    SAVED_AT,
    SELECTIVE,
    SHALLOW,
    SP,
    TP,
    Case,
)

MUON = ("optimizer.name=muon", "optimizer.lr=5e-3", "schedule.lr_warmup_iters=0")
STEPS = 12

MUON_TWO_RANKS = {
    "TP": Case((*MUON, *QWEN, *SHALLOW), (*TP, *SP), saves="of-TP"),
    "Mixtral, EP": Case((*MUON, *MIXTRAL, *SHALLOW), EP, last=SAVED_AT),
}
MUON_TWO_RANKS_FULL = {
    "TP -> PP": Case((*MUON, *QWEN, *SHALLOW), PP, loads="of-TP"),
    "DP": Case((*MUON, *QWEN, *SHALLOW), (), last=SAVED_AT),
    "TP of twelve steps": Case((*MUON, *QWEN), (*TP, *SP), last=STEPS),
    "NeoX, TP": Case((*MUON, *NEOX), TP, last=STEPS),
    "PP": Case((*MUON, *QWEN), (*PP, *ACCUMULATED), last=STEPS),
    "DP of twelve steps": Case((*MUON, *QWEN), (*OVERLAP, *ACCUMULATED), last=STEPS),
    "CP": Case((*MUON, *QWEN), (*CP, *SELECTIVE), last=STEPS),
    "Mixtral, EP of twelve steps": Case((*MUON, *MIXTRAL), EP, last=STEPS),
    "DeepSeek, TP": Case((*MUON, *DEEPSEEK), TP_SP, last=STEPS),
    "DeepSeek, TP with whole experts": Case((*MUON, *DEEPSEEK), (*TP_SP, *WHOLE), last=STEPS),
    "bf16, TP": Case((*MUON, *QWEN, *BF16), (*TP, *SP), last=SAVED_AT),
    "fp16, TP": Case((*MUON, *QWEN, *FP16), (*TP, *SP), last=SAVED_AT),
}
MUON_FOUR_RANKS_FULL = {
    "DeepSeek, EP x TP": Case((*MUON, *DEEPSEEK), (*EP, *TP_SP), last=STEPS),
    "TP x DP": Case((*MUON, *QWEN), (*TP, *SP, *ACCUMULATED), last=STEPS),
    "TP x PP": Case((*MUON, *QWEN), (*TP, *SP, *PP), last=STEPS),
}
MUON_ONE_RANK = {"TP -> one": Case((*MUON, *QWEN, *SHALLOW), (), loads="of-TP")}
