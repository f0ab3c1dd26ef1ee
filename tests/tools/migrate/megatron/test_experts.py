"""Flags of experts, of Megatron-LM and MindSpeed-LLM, are the keys of the same model, or have to be accepted."""

from __future__ import annotations

import pytest

from pretrain.errors import MigrateError
from pretrain.tools.migrate.megatron.experts import layers_with_experts
from pretrain.tools.migrate.programs import program
from pretrain.tools.migrate.setting import Setting, Settings
from tools.migrate.megatron.small_training import line_of, migrated

COMMON = (
    "--train-iters 10 --swiglu --disable-bias-linear --position-embedding-type rope --num-experts 8 "
    "--moe-router-topk 4 "
)
SIGMOID = "--moe-router-score-function sigmoid "


@pytest.mark.parametrize(
    ("arguments", "keys"),
    [
        ("", {"moe_router_load_balancing_type": "none", "moe_router_topk": 4, "num_experts": 8}),
        (
            "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 1e-3 --moe-z-loss-coeff 1e-4",
            {"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 1e-3, "moe_z_loss_coeff": 1e-4},
        ),
        ("--moe-expert-capacity-factor 1.5", {"moe_expert_capacity_factor": 1.5, "moe_token_drop_policy": "probs"}),
        (
            "--moe-expert-capacity-factor 2 --moe-token-drop-policy position --moe-pad-expert-input-to-capacity",
            {"moe_expert_capacity_factor": 2.0, "moe_token_drop_policy": "position"},
        ),
        ("--moe-expert-capacity-factor -1.0", {"moe_expert_capacity_factor": None}),
        ("--moe-router-pre-softmax", {"moe_router_pre_softmax": True}),
        ("--moe-router-load-balancing-type softmax_topk", {"moe_router_pre_softmax": True}),
        ("--moe-router-load-balancing-type softmax_topk --norm-topk-prob", {"moe_router_pre_softmax": False}),
        (
            SIGMOID + "--moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-2 --moe-router-num-groups 4 "
            "--moe-router-group-topk 2 --moe-router-topk-scaling-factor 2.5",
            {
                "moe_router_score_function": "sigmoid",
                "moe_router_enable_expert_bias": True,
                "moe_router_bias_update_rate": 1e-2,
                "moe_router_num_groups": 4,
                "moe_router_group_topk": 2,
                "moe_router_topk_scaling_factor": 2.5,
            },
        ),
        (SIGMOID + "--moe-router-num-groups 1 --moe-router-group-topk 1", {"moe_router_num_groups": None}),
        ("--moe-layer-freq -1 --first-k-dense-replace -1", {"first_k_dense_replace": 0, "moe_layer_freq": 1}),
        ("--moe-intermediate-size 24 --n-shared-experts 3", {"moe_shared_expert_intermediate_size": 72}),
    ],
)
def test_flags_become_keys(arguments, keys):
    is_of_mindspeed = any(flag in arguments for flag in ("softmax_topk", "first-k", "intermediate-size 24"))
    found = migrated(COMMON + arguments, program="mindspeed-llm" if is_of_mindspeed else "megatron-lm")
    assert {name: getattr(found.recipe.model, name) for name in keys} == keys
    assert found.is_complete


def test_experts_have_their_own_layout():
    found = migrated(
        COMMON + "--expert-model-parallel-size 4 --expert-tensor-parallel-size 1 --tensor-model-parallel-size 2 "
        "--sequence-parallel"
    )
    parallel = found.recipe.parallel
    assert (parallel.expert_model_parallel_size, parallel.expert_tensor_parallel_size) == (4, 1)


@pytest.mark.parametrize(
    ("frequency", "layers"),
    [
        ("1", [True] * 4),
        ("2", [True, False, True, False]),
        ("([0]*1+[1]*3)", [False, True, True, True]),
        ("([0]+[1])*2", [False, True, False, True]),
        ("[0,1,1,0]", [False, True, True, False]),
        ("[0]*1+[1]*2", None),
        ("[0]*2+[1]*2", [False, False, True, True]),
        ("[print(1)]", None),
        ("([2]*4)", None),
        ("([1]*99999999)", None),
        ("0", None),
    ],
)
def test_the_layers_with_experts_are_those_of_the_expression(frequency, layers):
    value = frequency if "[" in frequency else int(frequency)
    stated = {"num_layers": Setting("num_layers", 4, ""), "moe_layer_freq": Setting("moe_layer_freq", value, "")}
    assert layers_with_experts(Settings(program("megatron-lm"), stated)) == layers


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (
            "--moe-expert-capacity-factor 1.5 --tensor-model-parallel-size 2 --sequence-parallel",
            "moe_expert_capacity_factor",
        ),
        ("--moe-router-load-balancing-type sinkhorn", "moe_router_load_balancing_type"),
        ("--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 1", "moe_router_load_balancing_type"),
        ("--moe-layer-freq [0,1,1,0]", "moe_layer_freq"),
        (SIGMOID + "--moe-router-num-groups 4 --moe-router-group-topk 4", "moe_router_num_groups"),
        ("--moe-router-score-function sqrtsoftplus", "moe_router_score_function"),
        ("--moe-shared-expert-gate", "moe_shared_expert_gate"),
        ("--moe-zerc", "moe_zerc"),
    ],
)
def test_what_ours_do_otherwise_has_to_be_accepted(arguments, name):
    with pytest.raises(MigrateError, match=f"Give --accept {name} to write it anyway"):
        migrated(COMMON + arguments)
    assert not migrated(COMMON + arguments, accepted=frozenset([name])).is_complete


@pytest.mark.parametrize(
    "arguments",
    ["--moe-token-dispatcher-type alltoall", "--moe-grouped-gemm", "--moe-pad-expert-input-to-capacity"],
)
def test_how_experts_are_computed_has_no_effect(arguments):
    assert line_of(migrated(COMMON + arguments), arguments.split()[0])[0] == "no effect"


def test_without_experts_their_flags_are_not_read():
    found = migrated("--train-iters 10 --moe-router-topk 8 --moe-expert-capacity-factor 2 --moe-zerc")
    assert {line_of(found, name) for name in ("--moe-router-topk", "--moe-expert-capacity-factor", "--moe-zerc")} == {
        ("no effect", "it belongs to num_experts")
    }


@pytest.mark.parametrize("version", ["megatron-deepspeed", "megatron-lm-23.06"])
def test_experts_of_other_programs_have_to_be_accepted(version):
    arguments = "--train-iters 10 --num-experts 8"
    with pytest.raises(MigrateError, match="Give --accept num_experts to write it anyway"):
        migrated(arguments, program=version)
    found = migrated(arguments, program=version, accepted=frozenset(["num_experts"]))
    assert found.recipe.model.num_experts is None
