"""Our weights as they are written: their bits, the vocabulary, shards, the tokenizer; and what no architecture has."""

from __future__ import annotations

import json
import math
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from pretrain.errors import CheckpointError
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.formats import hugging_face, hugging_face_writer
from pretrain.tools.convert.lazy_tensor import in_memory
from pretrain.tools.convert.model_weights import EMBEDDING, FileLayout, ModelWeights, expected_shapes
from pretrain.tools.convert.rank_parts import from_parts_first, fused, separate, to_parts_first
from tools.convert.formats.hugging_face_models import (
    FFN,
    HEADS,
    HIDDEN,
    POSITIONS,
    VOCAB,
    counted,
    require_equal,
    written,
)

ARCHITECTURES = {
    "gpt2": {"position_embedding_type": "learned_absolute", "activation": "gelu_tanh"},
    "gpt_neox": {"position_embedding_type": "rope", "rotary_percent": 0.5},
    "llama": {
        "position_embedding_type": "rope",
        "normalization": "RMSNorm",
        "activation": "swiglu",
        "add_bias_linear": False,
    },
}
ARCHITECTURES["qwen2"] = ARCHITECTURES["llama"] | {"add_qkv_bias": True}
ARCHITECTURES["mistral"] = ARCHITECTURES["llama"] | {"window_size": 5}
ARCHITECTURES["stablelm"] = ARCHITECTURES["llama"] | {"normalization": "LayerNorm", "rotary_percent": 0.5}
ARCHITECTURES["qwen3"] = ARCHITECTURES["llama"] | {"qk_layernorm": True}
ARCHITECTURES["mixtral"] = ARCHITECTURES["llama"] | {"num_experts": 3}
ARCHITECTURES["qwen3_moe"] = ARCHITECTURES["qwen3"] | {"num_experts": 3, "moe_ffn_hidden_size": 5}
ARCHITECTURES["glm4_moe"] = ARCHITECTURES["llama"] | {
    "num_experts": 4,
    "moe_ffn_hidden_size": 5,
    "moe_shared_expert_intermediate_size": 10,
    "first_k_dense_replace": 1,
    "rotary_percent": 0.5,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "moe_router_num_groups": 2,
    "moe_router_group_topk": 1,
    "moe_router_topk_scaling_factor": 2.5,
}
ARCHITECTURES["dots1"] = ARCHITECTURES["glm4_moe"] | {"rotary_percent": 1.0, "qk_layernorm": True}


def ours(kind, dtype=torch.float32, rows=VOCAB, vocab_size=None, **more):
    """Return random weights of our own."""
    shape = {"num_layers": 2, "hidden_size": HIDDEN, "num_attention_heads": HEADS, "seq_length": POSITIONS}
    model = ModelSection.model_validate(shape | {"ffn_hidden_size": FFN} | ARCHITECTURES[kind] | more)
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: in_memory(torch.randn(shape, generator=generator).to(dtype))
        for name, shape in expected_shapes(model, rows).items()
    }
    return ModelWeights(path=Path("run"), format="pretrain", model=model, tensors=tensors, vocab_size=vocab_size)


@settings(max_examples=25)
@given(
    kind=st.sampled_from(sorted(ARCHITECTURES)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    share=st.sampled_from([1, 2]),
    width=st.integers(1, 9),
    is_parallel=st.booleans(),
    is_untied=st.booleans(),
)
def test_what_is_written_is_read_bit_by_bit(
    tmp_path_factory, kind, dtype, layers, heads, share, width, is_parallel, is_untied
):
    more = {"num_layers": layers, "hidden_size": 8 * heads, "num_attention_heads": heads, "ffn_hidden_size": width}
    more |= {"parallel_residual": is_parallel and kind == "gpt_neox"}
    more |= {"num_query_groups": math.gcd(heads, share)} if kind not in {"gpt2", "gpt_neox"} else {}
    weights = ours(kind, dtype, rows=11, untie_embeddings_and_output_weights=is_untied, **more)
    again = hugging_face.read(written(weights, tmp_path_factory.mktemp("target")), {})
    require_equal(again.tensors, weights.tensors)
    told = again.model.model_fields_set - {"hidden_dropout", "attention_dropout"}
    assert {name: getattr(weights.model, name) for name in told} == {name: getattr(again.model, name) for name in told}


def test_biases_that_are_not_0_are_not_left_out(tmp_path):
    folder = written(ours("gpt2"), tmp_path)
    with pytest.raises(CheckpointError, match=r"unexpected decoder\.layers\.0\.self_attention\.linear_qkv\.bias"):
        hugging_face.read(folder, {"add_bias_linear": False})


def test_each_row_is_read_once(tmp_path):
    weights, counts = counted(ours("llama", num_query_groups=2))
    written(weights, tmp_path)
    assert counts == {name: tensor.shape[0] for name, tensor in weights.tensors.items()}


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 200))
def test_rows_in_another_order_are_read_in_blocks_of_any_size(groups, share, channels, size):
    model = ours("llama").model.model_copy(
        update={"num_query_groups": groups, "num_attention_heads": groups * share, "kv_channels": channels}
    )
    rows = groups * (share + 2) * channels
    whole = torch.arange(rows * 2).view(rows, 2).float()
    grouped = whole.view(groups, share + 2, channels, 2)
    parts = separate(in_memory(whole), model)
    slots = (grouped[:, :share], grouped[:, share], grouped[:, share + 1])
    for part, expected in zip(parts, slots, strict=True):
        assert torch.equal(torch.cat([*part.blocks(size)]), expected.reshape(-1, 2))
    assert torch.equal(torch.cat([*fused(*parts, model).blocks(size)]), whole)
    if share == 1:
        first = to_parts_first(in_memory(whole), groups)
        assert torch.equal(torch.cat([*first.blocks(size)]), grouped.transpose(0, 1).reshape(-1, 2))
        assert torch.equal(torch.cat([*from_parts_first(first, groups).blocks(size)]), whole)


def test_padding_of_the_vocabulary_is_left_out(tmp_path):
    weights = ours("gpt2", rows=384, vocab_size=VOCAB)
    folder = written(weights, tmp_path)
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == VOCAB
    table = load_file(folder / "model.safetensors")["transformer.wte.weight"]
    assert torch.equal(table, weights.tensors[EMBEDDING].whole()[:VOCAB])


def test_a_large_model_is_written_in_shards_that_transformers_opens(tmp_path, monkeypatch):
    monkeypatch.setattr(hugging_face_writer, "LEAST_SHARD", 1000)
    weights = ours("llama")
    folder = written(weights, tmp_path)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    sizes = {path.name: path.stat().st_size for path in folder.glob("model-*.safetensors")}
    total = sum(tensor.nbytes for tensor in weights.tensors.values())
    assert index["metadata"] == {"total_size": total, "total_parameters": total // 4}
    assert set(index["weight_map"].values()) == sizes.keys()
    assert min(sizes) == f"model-00001-of-{len(sizes):05d}.safetensors"
    assert len(sizes) >= 4
    assert not (folder / "model.safetensors").exists()
    require_equal(hugging_face.read(folder, {}).tensors, weights.tensors)
    _, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values()), info


@pytest.mark.parametrize(
    ("kind", "more", "named"),
    [
        ("gpt2", {"parallel_residual": True}, "model.parallel_residual=true"),
        ("gpt2", {"embedding_layernorm": True}, "model.embedding_layernorm=true"),
        ("gpt2", {"num_query_groups": 2}, "model.num_query_groups=2"),
        ("gpt2", {"kv_channels": 8}, "model.kv_channels=8"),
        ("gpt2", {"normalization": "RMSNorm"}, "model.normalization=RMSNorm"),
        ("gpt2", {"activation": "swiglu"}, "model.activation=swiglu"),
        ("gpt2", {"qk_layernorm": True}, "model.qk_layernorm=true"),
        ("gpt_neox", {"qk_layernorm": True}, "model.qk_layernorm=true"),
        ("gpt_neox", {"embedding_layernorm": True}, "model.embedding_layernorm=true"),
        ("gpt2", {"window_size": 5}, "model.window_size=5"),
        ("gpt_neox", {"window_size": 5}, "model.window_size=5"),
        ("llama", {"rotary_percent": 0.5}, "model.rotary_percent=0.5"),
        ("mistral", {"rotary_percent": 0.5}, "model.rotary_percent=0.5"),
        ("qwen3", {"window_size": 5}, "model.window_size=5"),
        ("stablelm", {"parallel_residual": True}, "model.parallel_residual=true"),
        ("stablelm", {"kv_channels": 8}, "model.kv_channels=8"),
        ("llama", {"activation": "gelu"}, "model.activation=gelu"),
        ("qwen2", {"parallel_residual": True}, "model.parallel_residual=true"),
        ("qwen3", {"add_qkv_bias": True}, "model.add_qkv_bias=true"),
        ("gpt2", {"num_experts": 3}, "model.num_experts=3"),
        ("mixtral", {"moe_ffn_hidden_size": 5}, "model.moe_ffn_hidden_size=5"),
        ("mixtral", {"moe_router_pre_softmax": True}, "model.moe_router_pre_softmax=true"),
        ("qwen3_moe", {"first_k_dense_replace": 1}, "model.first_k_dense_replace=1"),
        ("qwen3_moe", {"moe_layer_freq": 2}, "model.moe_layer_freq=2"),
        ("glm4_moe", {"moe_router_enable_expert_bias": False}, "model.moe_router_enable_expert_bias=false"),
        ("glm4_moe", {"moe_shared_expert_intermediate_size": 7}, "model.moe_shared_expert_intermediate_size=7"),
        ("dots1", {"moe_shared_expert_intermediate_size": 7}, "model.moe_shared_expert_intermediate_size=7"),
        ("dots1", {"window_size": 5}, "model.window_size=5"),
    ],
)
def test_a_model_that_no_architecture_has_is_refused_by_its_setting(kind, more, named):
    with pytest.raises(CheckpointError) as raised:
        hugging_face_writer.write(ours(kind, **more), FileLayout())
    assert named in str(raised.value)
    assert len(str(raised.value).splitlines()) == 2


TEXT = "Hello,  world<|endoftext|> again"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
    """A tokenizer.json, as `pretrain tokenizer train` makes them, and GPT-2's two files."""
    folder = tmp_path_factory.mktemp("bpe")
    codec = tokenizers.ByteLevelBPETokenizer()
    codec.train_from_iterator(["Hello, world again"] * 9, vocab_size=280, special_tokens=["<|endoftext|>"])
    codec.save(str(folder / "mine.json"))
    codec.save_model(str(folder), "my")
    return folder, codec


@pytest.mark.parametrize("names", [["mine.json"], ["my-vocab.json", "my-merges.txt"]], ids=["tokenizer.json", "GPT-2"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_the_tokenizer_is_opened_by_transformers(tmp_path, bpe, names, kind):
    folder, codec = bpe
    weights = replace(ours(kind), tokenizer=tuple(folder / name for name in names))
    written(weights, tmp_path)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert opened(TEXT).input_ids == codec.encode(TEXT).ids
    config = json.loads((tmp_path / "config.json").read_text())
    end = codec.token_to_id("<|endoftext|>")
    assert (opened.eos_token_id, config["eos_token_id"], config["bos_token_id"]) == (end, end, None)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == {"eos_token_id": end}
    assert {path.name for path in hugging_face.read(tmp_path, {}).tokenizer} > {"tokenizer_config.json"}


def test_a_padding_token_that_a_tokenizer_names_goes_into_both_files(tmp_path, bpe):
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    files = (bpe[0] / "mine.json", tmp_path / "tokenizer_config.json")
    folder = written(replace(ours("gpt2"), tokenizer=files), tmp_path / "hf")
    end = bpe[1].token_to_id("<|endoftext|>")
    assert json.loads((folder / "generation_config.json").read_text()) == {"eos_token_id": end, "pad_token_id": end}
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] == end


def test_sha256sum_finds_every_file_and_a_changed_one(tmp_path, bpe):
    folder = written(replace(ours("gpt2"), tokenizer=(bpe[0] / "mine.json",)), tmp_path)
    names = {path.name for path in folder.iterdir()} - {"SHA256SUMS"}
    check = partial(subprocess.run, ["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True)
    told = check(check=True).stdout
    assert set(told.splitlines()) == {f"{name}: OK" for name in names}
    (folder / "config.json").write_text("{}")
    assert "config.json: FAILED" in check(check=False).stdout


def test_the_card_of_a_model_of_hugging_face_is_kept(tmp_path):
    first = written(ours("llama"), tmp_path / "first")
    assert "license: apache-2.0" in (first / "README.md").read_text()
    (first / "README.md").write_text("# Mine")
    assert (written(hugging_face.read(first, {}), tmp_path / "second") / "README.md").read_text() == "# Mine"


def test_special_tokens_and_generation_of_another_model_of_hugging_face_are_kept(tmp_path, bpe, monkeypatch):
    """As Llama 3's list of ends, which no file of a tokenizer tells; another tokenizer's tokens are others."""
    first = written(replace(ours("llama"), tokenizer=(bpe[0] / "mine.json",)), tmp_path / "first")
    config = json.loads((first / "config.json").read_text())
    told = {"bos_token_id": 1, "eos_token_id": [3, 4], "pad_token_id": VOCAB}
    (first / "config.json").write_text(json.dumps(config | told))
    (first / "generation_config.json").write_text('{"eos_token_id": [3, 4], "temperature": 0.6}')
    weights = hugging_face.read(first, {})
    second = written(weights, tmp_path / "second")
    config = json.loads((second / "config.json").read_text())
    assert {name: config[name] for name in told} == told | {"pad_token_id": None}  # it is beyond the vocabulary
    same = [(folder / "generation_config.json").read_text() for folder in (first, second)]
    assert same[0] == same[1]
    third = written(replace(weights, tokenizer=(bpe[0] / "mine.json",)), tmp_path / "third")
    end = bpe[1].token_to_id("<|endoftext|>")
    assert json.loads((third / "generation_config.json").read_text()) == {"eos_token_id": end}
    monkeypatch.setattr(hugging_face_writer, "_LARGEST", 100)
    with pytest.raises(CheckpointError, match="larger than"):
        hugging_face_writer.write(weights, FileLayout())


def test_without_a_tokenizer_no_token_is_special(tmp_path):
    """transformers' defaults are GPT-2's own: 50256."""
    written(ours("gpt2"), tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (config.bos_token_id, config.eos_token_id) == (None, None)
