"""Layouts in which Adam with its state in bf16 must train as one process does, and read each other's checkpoints."""

from __future__ import annotations

from engine.layouts import OVERLAP_BOTH, PP, SHALLOW, SP, STAGE, TP, ZERO1, Case

BF16_STATE = ("optimizer.adam_beta2=0.95", "optimizer.exp_avg_dtype=bf16", "optimizer.exp_avg_sq_dtype=bf16")

STATE_TWO_RANKS = {
    "DP, ZeRO-1 overlapped": Case((*SHALLOW, *BF16_STATE), (*ZERO1, *OVERLAP_BOTH), saves="of-ZeRO-1"),
    "ZeRO-1 -> ZeRO 3": Case((*SHALLOW, *BF16_STATE), STAGE[3], loads="of-ZeRO-1"),
}
STATE_TWO_RANKS_FULL = {
    "TP": Case((*SHALLOW, *BF16_STATE), (*TP, *SP), saves="of-TP"),
    "TP -> PP": Case((*SHALLOW, *BF16_STATE), PP, loads="of-TP"),
}
STATE_ONE_RANK_FULL = {"TP -> one": Case((*SHALLOW, *BF16_STATE), (), loads="of-TP")}
