"""Counts against published sizes, and against sums done by hand."""

import pytest

from pretrain.recipe.sections.model import ModelSection
from pretrain.report.flops import Speedometer, active_parameter_count, active_text, flops_per_sequence, parameter_count


def model(layers, hidden, heads, seq_length, **more):
    return ModelSection(num_layers=layers, hidden_size=hidden, num_attention_heads=heads, seq_length=seq_length, **more)


GPT2_124M = model(12, 768, 12, 1024)
GPT2_345M = model(24, 1024, 16, 1024)
GPT3_175B = model(96, 12288, 96, 2048)
NEOX_20B = model(
    44, 6144, 64, 2048, position_embedding_type="rope", untie_embeddings_and_output_weights=True, parallel_residual=True
)
LLAMA3_8B = model(
    32,
    4096,
    32,
    8192,
    num_query_groups=8,
    ffn_hidden_size=14336,
    activation="swiglu",
    normalization="RMSNorm",
    add_bias_linear=False,
    position_embedding_type="rope",
    untie_embeddings_and_output_weights=True,
)
QWEN2_7B = model(
    28,
    3584,
    28,
    32768,
    num_query_groups=4,
    ffn_hidden_size=18944,
    activation="swiglu",
    normalization="RMSNorm",
    add_bias_linear=False,
    add_qkv_bias=True,
    position_embedding_type="rope",
    untie_embeddings_and_output_weights=True,
)

GATED = {
    "activation": "swiglu",
    "normalization": "RMSNorm",
    "add_bias_linear": False,
    "position_embedding_type": "rope",
    "untie_embeddings_and_output_weights": True,
}
MIXTRAL_8X7B = model(32, 4096, 32, 4096, num_query_groups=8, ffn_hidden_size=14336, num_experts=8, **GATED)
GLM_45_AIR = model(
    46,
    4096,
    96,
    4096,
    kv_channels=128,
    num_query_groups=8,
    ffn_hidden_size=10944,
    add_qkv_bias=True,
    num_experts=128,
    moe_ffn_hidden_size=1408,
    first_k_dense_replace=1,
    moe_shared_expert_intermediate_size=1408,
    moe_router_topk=8,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    **GATED,
)
DOTS_LLM1 = model(
    62,
    4096,
    32,
    32768,
    ffn_hidden_size=10944,
    qk_layernorm=True,
    num_experts=128,
    moe_ffn_hidden_size=1408,
    first_k_dense_replace=1,
    moe_shared_expert_intermediate_size=2816,
    moe_router_topk=6,
    moe_router_score_function="sigmoid",
    moe_router_enable_expert_bias=True,
    **GATED,
)


@pytest.mark.parametrize(
    ("section", "vocab_size", "published"),
    [
        (GPT2_124M, 50257, 124_439_808),  # Hugging Face gpt2
        (GPT2_345M, 50304, 354_871_296),  # Megatron-LM's 345M, padded vocabulary
        (NEOX_20B, 50432, 20_554_567_680),  # EleutherAI/gpt-neox-20b
        (LLAMA3_8B, 128256, 8_030_261_248),  # meta-llama/Meta-Llama-3-8B
        (QWEN2_7B, 152064, 7_615_616_512),  # Qwen/Qwen2-7B
        (MIXTRAL_8X7B, 32000, 46_702_792_704),  # mistralai/Mixtral-8x7B-v0.1
        # zai-org/GLM-4.5-Air, as transformers 5.23 makes it: without the layer that predicts the token after the next
        (GLM_45_AIR, 151552, 106_852_245_504),
        (DOTS_LLM1, 152064, 142_774_373_888),  # rednote-hilab/dots.llm1.base, without the biases of the routers
    ],
    ids=["gpt2-124m", "gpt2-345m", "neox-20b", "llama3-8b", "qwen2-7b", "mixtral-8x7b", "glm-4.5-air", "dots.llm1"],
)
def test_parameters_are_those_of_published_models(section, vocab_size, published):
    assert parameter_count(section, vocab_size) == published


def test_gpt3_has_175_billion_parameters():
    assert parameter_count(GPT3_175B, 51200) == pytest.approx(175e9, rel=0.003)


def test_an_embedding_layer_norm_adds_weight_and_bias():
    with_norm = model(12, 768, 12, 1024, embedding_layernorm=True)
    assert parameter_count(with_norm, 50257) - parameter_count(GPT2_124M, 50257) == 2 * 768


def test_an_embedding_rms_norm_adds_its_weight_alone():
    plain, with_norm = (
        model(12, 768, 12, 1024, normalization="RMSNorm", embedding_layernorm=has_norm) for has_norm in (False, True)
    )
    assert parameter_count(with_norm, 50257) - parameter_count(plain, 50257) == 768


def test_gpt2_124m_by_hand():
    # Per token, forward: 12 layers of (qkv 2 x 768 x 2304, projection 2 x 768 x 768, mlp 2 x 2 x 768 x 3072, scores and
    # context 2 x 2 x 768 x 512.5 keys), logits 2 x 768 x 50304.
    layer = 3_538_944 + 1_179_648 + 9_437_184 + 1_574_400
    assert flops_per_sequence(GPT2_124M, 50304) == 3 * 1024 * (12 * layer + 77_266_944) == 817_241_260_032


@pytest.mark.parametrize("section", [GPT2_124M, GPT2_345M, GPT3_175B, NEOX_20B])
def test_without_recompute_it_is_equation_3_of_narayanan_2021_with_the_keys_that_are_seen(section):
    layers, hidden, length, vocab_size = section.num_layers, section.hidden_size, section.seq_length, 51200
    keys = (length + 1) / 2  # of a token, in the mean; the paper has `length`
    published = 96 * length * layers * hidden**2 * (1 + keys / (6 * hidden) + vocab_size / (16 * layers * hidden))
    # The paper adds a second forward pass for the layers (8 of 24 parts become recompute), not for the logits.
    logits = 6 * length * hidden * vocab_size
    assert flops_per_sequence(section, vocab_size) == pytest.approx((published - logits) * 3 / 4 + logits, rel=1e-12)


def test_large_models_cost_six_flops_per_parameter_and_token():
    per_token = flops_per_sequence(GPT3_175B, 51200) / 2048
    assert per_token == pytest.approx(6 * parameter_count(GPT3_175B, 51200), rel=0.04)


def test_grouped_queries_and_gated_mlps_by_hand():
    # Per token, forward: qkv 2 x 4096 x (4096 + 2 x 1024), projection 2 x 4096^2, mlp 3 x 2 x 4096 x 14336, scores and
    # context 4 x 4096 x 4096.5 keys; logits 2 x 4096 x 128256.
    layer = 50_331_648 + 33_554_432 + 352_321_536 + 67_117_056
    assert flops_per_sequence(LLAMA3_8B, 128256) == 3 * 8192 * (32 * layer + 1_050_673_152)


def test_a_window_counts_the_keys_that_each_token_sees():
    whole = model(1, 8, 2, 4)
    counts = [flops_per_sequence(whole.model_copy(update={"window_size": window}), 10) for window in (2, 3, 4, 9, None)]
    assert counts[2] == counts[3] == counts[4]
    # 1 + 2 + 2 + 2, 1 + 2 + 3 + 3 and 1 + 2 + 3 + 4 keys
    assert [counts[4] - each for each in counts[:2]] == [3 * (4 * 8) * 3, 3 * (4 * 8) * 1]


def test_heads_may_be_wider_than_their_share():
    wide = model(1, 8, 2, 4, kv_channels=16)
    # qkv 2 x 8 x 96, projection 2 x 32 x 8, mlp 4 x 8 x 32, 2.5 keys 4 x 2.5 x 32, logits 2 x 8 x 10
    assert flops_per_sequence(wide, 10) == 3 * 4 * (1536 + 512 + 1024 + 320 + 160)
    # embedding 80 + positions 32 + two norms 32 + final norm 16 + qkv 768 + 96 + projection 256 + 8 + mlp 512 + 40
    assert parameter_count(wide, 10) == 80 + 32 + 32 + 16 + 864 + 264 + 552


def test_a_token_computes_with_its_own_experts_the_shared_ones_and_the_router():
    shape = {"activation": "swiglu", "add_bias_linear": False, "ffn_hidden_size": 32}
    dense = model(3, 8, 2, 4, **shape)
    mixture = model(
        3,
        8,
        2,
        4,
        **shape,
        num_experts=5,
        moe_ffn_hidden_size=6,
        moe_shared_expert_intermediate_size=10,
        moe_layer_freq=2,
    )
    # of layers 0 and 2: an MLP 3 x 8 x 32 = 768 gives way to 5 experts of 3 x 8 x 6, a shared one, and a router 5 x 8
    more = 2 * (5 * 144 + 240 + 40 - 768)
    assert parameter_count(mixture, 10) == parameter_count(dense, 10) + more
    assert active_parameter_count(mixture, 10) == parameter_count(mixture, 10) - 2 * 3 * 144
    assert flops_per_sequence(mixture, 10) == flops_per_sequence(dense, 10) + 3 * 4 * 2 * 2 * (288 + 240 + 40 - 768)
    assert active_text(mixture, 0) == f", of which {active_parameter_count(mixture, 0):,} compute for a token"
    assert (active_parameter_count(dense, 10), active_text(dense, 10)) == (parameter_count(dense, 10), "")


def test_the_speed_of_an_interval():
    speedometer = Speedometer(seq_length=1000, flops_per_sequence=4 * 10**12, world_size=2, peak_flops=5e13)
    speed = speedometer.measure(iterations=10, samples=80, seconds=5.0)
    assert speed["seconds_per_iteration"] == 0.5
    assert speed["samples_per_second"] == 16
    assert speed["tokens_per_second_per_device"] == 8000
    assert speed["tflops_per_device"] == pytest.approx(32)
    assert speed["mfu"] == pytest.approx(0.64)


def test_without_a_declared_peak_there_is_no_mfu():
    speedometer = Speedometer(seq_length=1, flops_per_sequence=1, world_size=1, peak_flops=None)
    assert speedometer.measure(iterations=1, samples=1, seconds=1.0)["mfu"] is None
