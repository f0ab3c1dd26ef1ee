"""Kernel requests: one per operation, with the sizes of one rank."""

from __future__ import annotations

import pytest
import torch

from engine import tiny
from engine.layouts import LLAMA, NEOX, QWEN3
from pretrain.engine import kernels
from pretrain.model.requests import attention_requests, collectives_request, compute_dtype, kernel_requests
from pretrain.plugins.contract import keep
from pretrain.plugins.offer import Offer
from pretrain.plugins.requests import Mask
from pretrain.recipe.sections.precision import KernelsSection


def requests(*overrides):
    """Return the requests by operation and role; there is one of each."""
    asked = kernel_requests(tiny.tiny(*overrides), "cpu", tiny.VOCAB_SIZE)
    by_key = {request.key: request for request in asked}
    assert len(by_key) == len(asked)
    return by_key


def test_the_softmax_comes_before_the_attention_that_may_use_it():
    operations = list(requests())
    assert operations.index("softmax") < operations.index("attention")


@pytest.mark.parametrize(("model", "has_rotary"), [((), False), (NEOX, True), (LLAMA, True)])
def test_rotary_is_asked_for_where_the_model_rotates(model, has_rotary):
    usual = {"softmax", "attention", "norm", "activation", "bias_dropout_add", "cross_entropy", "linear", "optimizer"}
    assert requests(*model).keys() == usual | ({"rotary"} if has_rotary else set())


def test_sizes_are_those_of_one_rank():
    split = ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true")
    asked = requests(*LLAMA, *split, "model.ffn_hidden_size=256", "train.micro_batch_size=4")
    assert (asked["attention"].heads, asked["attention"].query_groups, asked["attention"].head_size) == (2, 1, 16)
    assert (asked["attention"].seq_length, asked["attention"].micro_batch_size) == (32, 4)
    assert asked["softmax"].heads == asked["rotary"].heads == 2
    assert asked["activation"].features == 128
    assert (asked["linear"].tensor_parallel_size, asked["linear"].sequence_parallel) == (2, True)
    cross_entropy = asked["cross_entropy"]
    assert (cross_entropy.seq_length, cross_entropy.micro_batch_size) == (32, 4)
    assert (cross_entropy.vocab_size, cross_entropy.padded_vocab_size, cross_entropy.tensor_parallel_size) == (
        300,
        512,
        2,
    )


def test_the_models_kinds_are_asked_for():
    asked = requests(*LLAMA, "model.layernorm_epsilon=1e-6")
    assert (asked["norm"].kind, asked["norm"].epsilon, asked["norm"].hidden_size) == ("RMSNorm", 1e-6, 64)
    assert (asked["activation"].kind, asked["activation"].has_bias) == ("swiglu", False)
    assert not asked["bias_dropout_add"].has_bias
    assert requests(*NEOX)["rotary"].rotary_size == 4
    assert requests("optimizer.name=adam")["optimizer"].name == "adam"


def test_dropout_is_asked_for_where_it_happens():
    asked = requests("model.hidden_dropout=0.1", "model.attention_dropout=0.2")
    assert (asked["bias_dropout_add"].dropout, asked["attention"].dropout) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("name", "dtype", "sum_dtype"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.float32),
        ("fp16", torch.float16, torch.float16),
    ],
)
def test_dtypes(name, dtype, sum_dtype):
    asked = requests(f"precision.dtype={name}")
    assert compute_dtype(tiny.tiny(f"precision.dtype={name}")) == dtype
    assert {request.dtype for operation, request in asked.items() if operation != "optimizer"} == {dtype}
    assert asked["optimizer"].dtype == torch.float32
    assert asked["norm"].weight_dtype == dtype
    assert asked["linear"].main_grad_dtype == sum_dtype


def test_a_deterministic_run_asks_for_nothing_else():
    assert all(request.deterministic for request in requests("train.deterministic_mode=true").values())


def test_documents_that_are_kept_apart_are_asked_of_attention():
    assert requests()["attention"].mask is Mask.CAUSAL
    assert requests("data.reset_attention_mask=true")["attention"].mask is Mask.DOCUMENTS


def test_ranks_that_share_sequences_ask_for_a_piece_and_what_is_before_it():
    whole = requests("model.position_embedding_type=rope")
    asked = requests("model.position_embedding_type=rope", "parallel.context_parallel_size=2")
    length = whole["attention"].seq_length
    assert (asked["attention"].seq_length, asked["attention"].keys) == (length // 4, length)
    assert asked["rotary"].seq_length == asked["cross_entropy"].seq_length == length // 2


def test_cross_entropy_in_fp16_only_on_demand():
    assert requests("precision.dtype=fp16")["cross_entropy"].in_fp32
    demanded = requests("precision.dtype=fp16", "precision.fp16_lm_cross_entropy=true")
    assert not demanded["cross_entropy"].in_fp32


def test_scores_are_scaled_by_the_root_of_the_head_size():
    assert requests()["attention"].scale == 16**-0.5
    assert requests()["attention"].score_divisor == requests()["softmax"].scale == 1


def test_layer_scaling_divides_the_scores_and_undoes_it_in_the_softmax():
    recipe = tiny.tiny("model.apply_query_key_layer_scaling=true")
    softmax, attention = attention_requests(recipe, "cpu", layer_number=3)
    assert (attention.score_divisor, softmax.scale) == (3, 3)
    assert softmax.in_fp32
    assert attention.softmax_in_fp32


def test_with_layer_scaling_every_layer_gets_a_kernel_of_its_own(monkeypatch):
    asked = []

    def record(*args, layer_number):
        asked.append(layer_number)
        return attention_requests(*args, layer_number=layer_number)

    monkeypatch.setattr(kernels, "attention_requests", record)
    with tiny.engine_of(tiny.tiny("model.apply_query_key_layer_scaling=true")):
        assert asked == [1, 2, 3, 4]
    asked.clear()
    with tiny.engine_of(tiny.tiny()):
        assert asked == []


def test_collectives_are_asked_for_with_the_groups():
    request = collectives_request(tiny.tiny("parallel.distributed_timeout_minutes=7"), "cpu", "gloo")
    assert (request.process_group, request.timeout_minutes, request.dtype) == ("gloo", 7, torch.float32)


def test_requests_are_plain_values():
    for request in requests(*LLAMA).values():
        assert request.to_json()["device_type"] == "cpu"
        assert hash(request) == hash(requests(*LLAMA)[request.key])


def test_the_heads_norm_is_asked_for_by_itself():
    asked = requests(*QWEN3)
    assert (asked["norm"].hidden_size, asked["norm@head"].hidden_size, asked["norm@head"].role) == (64, 24, "head")


EXPERTS = (
    *LLAMA,
    "model.num_experts=8",
    "model.moe_router_topk=3",
    "model.moe_ffn_hidden_size=48",
    "model.moe_shared_expert_intermediate_size=96",
)


def test_a_model_with_experts_asks_for_what_they_compute():
    asked = requests(*EXPERTS, "precision.dtype=bf16", "model.moe_router_score_function=sigmoid")
    added = {"linear@router", "router", "moe_permute", "grouped_linear", "activation@expert", "activation@shared"}
    assert asked.keys() - requests(*LLAMA).keys() == added
    assert {asked[key].dtype for key in ("linear@router", "router")} == {torch.float32}
    assert (asked["linear@router"].tensor_parallel_size, asked["linear@router"].main_grad_dtype) == (1, None)
    assert (asked["router"].score_function, asked["router"].topk, asked["moe_permute"].topk) == ("sigmoid", 3, 3)
    assert (asked["grouped_linear"].dtype, asked["grouped_linear"].main_grad_dtype) == (torch.bfloat16, torch.float32)
    assert asked["grouped_linear"].rows == 32 * 4 * 3
    assert (asked["activation@expert"].features, asked["activation@shared"].features) == (48, 96)


@pytest.mark.parametrize(("tensor", "of_experts", "rows"), [(1, 1, 384), (2, 1, 192), (2, 2, 384)])
def test_experts_and_their_widths_are_those_of_one_rank(tensor, of_experts, rows):
    split = [f"parallel.tensor_model_parallel_size={tensor}"] + ["parallel.sequence_parallel=true"] * (tensor > 1)
    split += [f"parallel.expert_tensor_parallel_size={of_experts}"] * (tensor > 1)
    asked = requests(*EXPERTS, *split, "parallel.expert_model_parallel_size=2")
    grouped = asked["grouped_linear"]
    assert (grouped.experts, grouped.ffn_hidden_size, grouped.rows) == (4, 48 // of_experts, rows)
    assert asked["activation@expert"].features == 48 // of_experts
    assert asked["activation@shared"].features == 96 // tensor
    assert asked["router"].experts == asked["moe_permute"].experts == 8


def test_a_recipe_can_name_the_kernel_of_every_role():
    named = requests(*EXPERTS, "model.qk_layernorm=true", "kernels.linear@output=reference")
    assert {key for key in named if "@" in key} == {key for key in KernelsSection.model_fields if "@" in key}


def test_in_fp8_the_linears_of_layers_are_quantized_and_no_others():
    split = ("parallel.tensor_model_parallel_size=2", "parallel.sequence_parallel=true")
    wide = ("model.hidden_size=128", "model.num_query_groups=4", "model.moe_ffn_hidden_size=64")
    asked = requests(*EXPERTS, *wide, *split, "model.moe_layer_freq=2", "precision.fp8=rowwise")
    linear = asked["linear"]
    assert (linear.quantization, linear.quantized_wgrad) == ("rowwise", True)
    assert linear.shapes == ((320, 128), (128, 160), (96, 128), (128, 48), (192, 128), (128, 64))
    assert {asked[f"linear@{role}"].quantization for role in ("output", "router")} == {""}
    assert asked["grouped_linear"].quantization == "rowwise"
    asked = requests(*LLAMA, "precision.fp8=mxfp8", "precision.fp8_wgrad=false", "model.hidden_size=128")
    assert (asked["linear"].quantization, asked["linear"].quantized_wgrad) == ("mxfp8", False)


def test_a_plugin_that_knows_no_fp8_declines_it():
    offer = Offer(name="theirs", build=lambda built: None)
    plain, quantized = requests()["linear"], requests("precision.fp8=rowwise")["linear"]
    assert keep(offer, plain, (1, 3)) is offer
    assert "has no quantization rowwise" in keep(offer, quantized, (1, 3)).reason
