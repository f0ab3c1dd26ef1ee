"""Layouts in which embedding and output layer, with a learning rate of their own, must train as on one process."""

from __future__ import annotations

from engine.layouts import OVERLAP_BOTH, PP, SHALLOW, SP, STAGE, TP, ZERO1, Case

APART = ("optimizer.decoupled_lr=5e-3", "schedule.decoupled_min_lr=1e-4", "schedule.lr_decay_iters=6")
UNTIED = ("model.untie_embeddings_and_output_weights=true",)
MUON = ("optimizer.name=muon",)

RATE_TWO_RANKS = {
    "TP, untied": Case((*SHALLOW, *APART, *UNTIED), (*TP, *SP), saves="of-TP"),
    "PP": Case((*SHALLOW, *APART), PP),
    "TP -> PP": Case((*SHALLOW, *APART, *UNTIED), PP, loads="of-TP"),
    "ZeRO-1 overlapped": Case((*SHALLOW, *APART), (*ZERO1, *OVERLAP_BOTH), saves="of-ZeRO-1"),
    "ZeRO-1 -> ZeRO 3": Case((*SHALLOW, *APART), STAGE[3], loads="of-ZeRO-1"),
    "Muon, TP": Case((*SHALLOW, *APART, *MUON), (*TP, *SP)),
}
