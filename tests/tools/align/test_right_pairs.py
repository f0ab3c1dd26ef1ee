"""Two correct ways to train differ by no more than the dtype explains."""

import pytest

from engine.context_layouts import CP, LLAMA_DOCUMENTS
from engine.expert_layouts import DEEPSEEK, EP, TP_SP, WHOLE
from engine.layouts import (
    ACCUMULATED,
    BF16,
    GPT2,
    INTERLEAVED,
    NEOX,
    NO_OVERLAP_P2P,
    OVERLAP,
    PER_TOKEN,
    PP,
    QWEN,
    QWEN3_AND_2,
    RECOMPUTE,
    SELECTIVE,
    SHALLOW,
    SP,
    STAGE,
    TP,
    ZERO1,
)
from pretrain.tools.align.comparing.outcome import BACKWARD, UPDATE
from pretrain.tools.align.comparing.recording import Recording
from tools.align.ranks import record_on_ranks
from tools.align.recorded import outcome_of, record

OPERATIONS = ("attention", "norm", "linear", "cross_entropy", "bias_dropout_add", "optimizer")
REFERENCE = tuple(f"kernels.{operation}=reference" for operation in OPERATIONS)
FP16 = ("precision.dtype=fp16", "precision.loss_scale=4096")
MODELS = {"gpt2": GPT2, "neox": NEOX, "qwen": QWEN3_AND_2}
ALONE = {
    "kernels": REFERENCE,
    "triangle": ("kernels.attention=triangle",),
    "recompute": RECOMPUTE,
    "selective": SELECTIVE,
    "micro-batches": ACCUMULATED,
    "bf16": BF16,
    "fp16": FP16,
    "ZeRO 3": STAGE[3],
    "ZeRO 2 in bf16": (*STAGE[2], *BF16),
}
ON_TWO_RANKS = {
    "TP": TP,
    "TP SP": TP + SP,
    "TP SP recompute": TP + SP + RECOMPUTE,
    "PP": PP,
    "PP micro-batches": PP + ACCUMULATED,
    "interleaved": PP + INTERLEAVED + NO_OVERLAP_P2P,
    "DP": (),
    "DP ZeRO 1": ZERO1 + OVERLAP,
    "CP": CP,
    "CP recompute": CP + RECOMPUTE,
    "CP selective, micro-batches": CP + SELECTIVE + ACCUMULATED,
    "ZeRO 0": STAGE[0],
    "ZeRO 2": STAGE[2],
    "ZeRO 3": STAGE[3],
    "ZeRO 1 CP": STAGE[1] + CP,
    "ZeRO 1 TP SP": STAGE[1] + TP + SP,
}


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """Recordings of one rank, by their overrides."""
    made = {}

    def usual(*overrides):
        if overrides not in made:
            made[overrides] = record(tmp_path_factory.mktemp("usual"), *overrides, steps=2)
        return made[overrides]

    return usual


def assert_aligned(first, second):
    outcome = outcome_of(first, second)
    assert outcome.is_aligned, (outcome.first, outcome.cause)
    assert max(each.share for each in outcome.compared) < 0.7  # some room is left
    return outcome


@pytest.mark.full
@pytest.mark.parametrize("case", ALONE)
def test_on_one_rank(case, usual, tmp_path):
    assert_aligned(usual(), record(tmp_path / "other", *ALONE[case], steps=2))


@pytest.mark.full
@pytest.mark.parametrize("dtype", [(), BF16, FP16], ids=["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_kernel_alone_whatever_the_weights(operation, seed, dtype, usual, tmp_path):
    given = (f"train.seed={seed}", *dtype)

    assert_aligned(usual(*given), record(tmp_path / "other", *given, f"kernels.{operation}=reference", steps=2))


@pytest.mark.full
def test_a_step_that_both_sides_skip_is_not_compared_and_the_next_one_is(tmp_path):
    given = ("precision.dtype=fp16", "precision.initial_loss_scale=2097152", "precision.hysteresis=1")
    sides = [record(tmp_path / kernel, *given, f"kernels.norm={kernel}", steps=4) for kernel in ("torch", "reference")]
    taken = {
        number + 1 for number, step in enumerate(Recording.open(sides[0]).ranks[0]["steps"]) if not step["skipped"]
    }
    assert taken
    assert 1 not in taken

    outcome = assert_aligned(*sides)

    assert not outcome.alike
    assert {each.step for each in outcome.compared if each.order[1] in (BACKWARD, UPDATE)} == taken


@pytest.mark.full
@pytest.mark.ranks
def test_layouts_of_two_ranks_are_compared_piece_by_piece(tmp_path):
    model = (*QWEN, *SHALLOW)
    record_on_ranks(tmp_path, 2, {"parts": (*model, *TP, *SP), "stages": (*model, *PP), "context": (*model, *CP)})

    whole = record(tmp_path / "whole", *model)
    pieces = assert_aligned(whole, tmp_path / "parts")
    stages = assert_aligned(whole, tmp_path / "stages")
    context = assert_aligned(whole, tmp_path / "context")

    # Nothing is left out: every kernel's call of every layer.
    assert not pieces.skipped
    assert not stages.skipped
    assert compared(pieces) == compared(stages)
    # But for the keys that a piece has of other ranks.
    assert [each.partition(" in ")[0] for each in context.skipped] == [
        f"attention's gradient of {x}" for x in ("key", "value")
    ]
    left = compared(pieces) - compared(context)
    assert {what.rpartition(" of ")[2].partition(" ")[0] for _, what in left} == {"key", "value"}


@pytest.mark.full
@pytest.mark.ranks
def test_pieces_of_documents_on_four_ranks(tmp_path):
    cases = {"CP TP SP": CP + TP + SP, "CP DP": CP, "CP PP": CP + PP}
    record_on_ranks(tmp_path, 4, {name: (*LLAMA_DOCUMENTS, *layout) for name, layout in cases.items()}, steps=2)

    whole = record(tmp_path / "whole", *LLAMA_DOCUMENTS, steps=2)
    for case in cases:
        assert_aligned(whole, tmp_path / case)


def compared(outcome):
    return {(each.order[:3], each.what.partition(", worst ")[0]) for each in outcome.compared}


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("dtype", [(), BF16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("model", MODELS)
def test_every_layout_of_two_ranks(model, dtype, usual, tmp_path):
    cases = {
        name: (*MODELS[model], *layout, *dtype)
        for name, layout in ON_TWO_RANKS.items()
        if not (dtype and layout == STAGE[0])  # ZeRO 0 does not sum in fp32
    }
    record_on_ranks(tmp_path, 2, cases, steps=2)

    for case in cases:
        assert_aligned(usual(*MODELS[model], *dtype), tmp_path / case)


@pytest.mark.full
@pytest.mark.ranks
def test_gradients_by_token_are_compared_whatever_the_engine_scales_them_with(usual, tmp_path):
    record_on_ranks(tmp_path, 2, {"megatron": PER_TOKEN, "deepspeed": (*STAGE[1], *PER_TOKEN)}, steps=2)

    for case in ("megatron", "deepspeed"):
        assert_aligned(usual(*PER_TOKEN), tmp_path / case)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.ranks
def test_layouts_of_experts(usual, tmp_path):
    """By position up to the router and after the experts; in between each call against float64."""
    cases = {
        "EP": EP,
        "EP ZeRO 1": (*EP, *ZERO1),
        "TP": TP_SP,
        "EP TP whole": (*EP, *TP_SP, *WHOLE),
        "PP": PP,
    }
    record_on_ranks(tmp_path, 2, {name: (*DEEPSEEK, *layout) for name, layout in cases.items()}, steps=2)

    whole = usual(*DEEPSEEK)
    checked = {check["operation"] for check in Recording.open(whole).checks()}
    assert {"router", "grouped_linear", "activation"} <= checked
    for case in cases:
        assert_aligned(whole, tmp_path / case)
