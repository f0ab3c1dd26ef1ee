"""Every format is recognized by its content, and its summary is that of the model that was written."""

from __future__ import annotations

import argparse
from dataclasses import asdict

import pytest
import torch
import transformers

from engine import tiny
from pretrain.tools.convert.registry import summary_of
from tools.convert import written
from tools.convert.written import FFN, HEADS, HIDDEN, LAYERS, NEOX_PARAMETERS, PARAMETERS, POSITIONS, VOCAB

SHAPE = {
    "num_layers": LAYERS,
    "hidden_size": HIDDEN,
    "ffn_hidden_size": FFN,
    "padded_vocab_size": VOCAB,
    "add_bias_linear": True,
}
GPT2 = SHAPE | {
    "max_position_embeddings": POSITIONS,
    "position_embedding_type": "learned_absolute",
    "untie_embeddings_and_output_weights": False,
}
HEADED = {"num_attention_heads": HEADS}
WHOLE = {"tensor": 1, "pipeline": 1, "virtual_pipeline": 1, "expert": 1, "data": 1}
EVERYTHING = ("weights", "optimizer", "rng", "schedule")


def has(summary, **expected):
    """Compare some of a summary's values."""
    model = expected.pop("model")
    found = {name: getattr(summary, name) for name in expected}
    assert found == expected
    assert {name: summary.model.get(name) for name in model} == model
    assert summary.files == sum(entry.is_file() for entry in summary.path.rglob("*"))
    assert summary.size == sum(entry.stat().st_size for entry in summary.path.rglob("*") if entry.is_file())


def test_a_release_of_2019(tmp_path):
    written.release(tmp_path)
    summary = summary_of(tmp_path)
    has(
        summary, format="Megatron-LM, one file a rank", version="0", iteration=None, parameters=PARAMETERS,
        dtypes=("fp32",), contents=("weights",), path=tmp_path / "release", model=GPT2,
    )  # fmt: skip
    assert asdict(summary.parts) == WHOLE
    assert "num_attention_heads" not in summary.model  # no shape tells it


@pytest.mark.parametrize(("tensor", "stages"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_training_of_megatron_lm(tmp_path, tensor, stages):
    written.megatron(tmp_path, tensor, stages)
    summary = summary_of(tmp_path)
    has(
        summary, format="Megatron-LM, one file a rank", version="3.0", iteration=5000, parameters=PARAMETERS,
        dtypes=("fp16",), contents=EVERYTHING, path=tmp_path / "iter_0005000", model=GPT2 | HEADED,
    )  # fmt: skip
    assert asdict(summary.parts) == WHOLE | {"tensor": tensor, "pipeline": stages}
    assert "num_query_groups" not in summary.model  # Megatron-LM's 1 counts with --group-query-attention alone


@pytest.mark.parametrize("tensor", [1, 2])
def test_gpt_neox(tmp_path, tensor):
    written.neox(tmp_path, tensor)
    summary = summary_of(tmp_path)
    rotary = {"position_embedding_type": "rope", "rotary_percent": 0.25, "untie_embeddings_and_output_weights": True}
    has(
        summary, format="GPT-NeoX, one file a layer", version="DeepSpeed 0.3.15", iteration=150000,
        parameters=NEOX_PARAMETERS, dtypes=("fp16",), contents=("weights", "rng"), model=SHAPE | HEADED | rotary,
    )  # fmt: skip
    assert asdict(summary.parts) == WHOLE | {"tensor": tensor}


def test_gpt_neox_without_the_file_of_its_states(tmp_path):
    """The published weights of GPT-NeoX-20B can be had without it."""
    written.neox(tmp_path)
    (tmp_path / "global_step150000" / "mp_rank_00_model_states.pt").unlink()
    has(summary_of(tmp_path), version=None, iteration=150000, parameters=NEOX_PARAMETERS, model=SHAPE)


def test_zero_3_of_deepspeed(tmp_path):
    written.zero3(tmp_path)
    summary = summary_of(tmp_path)
    has(
        summary, format="DeepSpeed", version="DeepSpeed 0.19.8", iteration=20, parameters=PARAMETERS, dtypes=("bf16",),
        contents=("weights", "optimizer"), model=GPT2 | HEADED,
    )  # fmt: skip
    assert asdict(summary.parts) == WHOLE | {"tensor": 2, "data": 2}


CONFIGS = {
    "GPT-2": (
        transformers.GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS),
        GPT2 | HEADED | {"activation": "gelu_tanh"},
        PARAMETERS,
    ),
    "GPT-NeoX": (
        transformers.GPTNeoXConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=FFN,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=False,
        ),
        SHAPE | HEADED | {"activation": "gelu", "parallel_residual": True, "untie_embeddings_and_output_weights": True},
        NEOX_PARAMETERS,
    ),
    "Llama": (
        transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=2,
            intermediate_size=FFN,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=False,
        ),
        SHAPE | HEADED | {"activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
        2 * VOCAB * HIDDEN + LAYERS * (3 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN) + HIDDEN,
    ),
}


@pytest.mark.parametrize("shard", ["5GB", "40KB"], ids=["whole", "sharded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_models_that_transformers_has_saved(tmp_path, name, shard):
    config, model, parameters = CONFIGS[name]
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(
        tmp_path, max_shard_size=shard
    )
    summary = summary_of(tmp_path)
    has(
        summary, format="Hugging Face, safetensors", iteration=None, parameters=parameters, dtypes=("bf16",),
        contents=("weights",), model={key: value for key, value in model.items() if key != "add_bias_linear"},
    )  # fmt: skip
    assert summary.version == f"transformers {transformers.__version__}"


def test_a_tied_head_in_a_torch_file_counts_once(tmp_path):
    config, _, parameters = CONFIGS["GPT-2"]
    torch.save(transformers.AutoModelForCausalLM.from_config(config).state_dict(), tmp_path / "pytorch_model.bin")
    config.save_pretrained(tmp_path)
    assert summary_of(tmp_path).parameters == parameters


def test_links_count_as_the_files_that_they_lead_to(tmp_path):
    """A snapshot of a hub's cache is made of links."""
    snapshot = tmp_path / "snapshots" / "0a1b2c"
    (tmp_path / "blobs").mkdir()
    snapshot.mkdir(parents=True)
    torch.save({"weight": torch.zeros(1000)}, tmp_path / "blobs" / "weights")
    (snapshot / "pytorch_model.bin").symlink_to(tmp_path / "blobs" / "weights")
    (snapshot / "config.json").write_text("{}")
    assert summary_of(snapshot).size > 4000


def test_deepspeeds_tracker_counts_where_megatrons_names_no_folder(tmp_path):
    """Megatron-DeepSpeed writes both, and the weights where DeepSpeed's says."""
    written.zero3(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    assert summary_of(tmp_path).path == tmp_path / "global_step20"


def test_a_model_beside_the_checkpoints_of_its_training_is_found_first(tmp_path):
    written.zero3(tmp_path)
    torch.save({"weight": torch.zeros(10)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    assert summary_of(tmp_path).format == "Hugging Face, torch files"
    assert summary_of(tmp_path / "global_step20").format == "DeepSpeed"


@pytest.mark.parametrize(("is_untied", "extra"), [(False, 0), (True, VOCAB * HIDDEN)])
def test_megatron_cores_copy_of_a_tied_embedding_does_not_count(tmp_path, is_untied, extra):
    args = argparse.Namespace(untie_embeddings_and_output_weights=is_untied)
    table = torch.zeros(VOCAB, HIDDEN)
    for stage, name in enumerate(("embedding.word_embeddings.weight", "output_layer.weight")):
        (tmp_path / f"mp_rank_00_{stage:03d}").mkdir()
        torch.save({"args": args, "model": {name: table}}, tmp_path / f"mp_rank_00_{stage:03d}" / "model_optim_rng.pt")
    summary = summary_of(tmp_path)
    assert summary.parameters == VOCAB * HIDDEN + extra
    assert summary.model["untie_embeddings_and_output_weights"] == is_untied


@pytest.mark.parametrize(("tensor", "parameters"), [(1, 2 * HIDDEN + 8), (2, None)])
def test_weights_of_unknown_names_are_not_counted_where_ranks_may_divide_them(tmp_path, tensor, parameters):
    for rank in range(tensor):
        (tmp_path / f"mp_rank_{rank:02d}").mkdir()
        state = {"model": {"final_layernorm.weight": torch.zeros(2 * HIDDEN), "mystery.weight": torch.zeros(8)}}
        torch.save(state, tmp_path / f"mp_rank_{rank:02d}" / "model_optim_rng.pt")
    assert summary_of(tmp_path).parameters == parameters


def test_names_of_newer_neox_models(tmp_path):
    """mlp.linear1 and linear2, and RMSNorm's scale."""
    written.neox(tmp_path, 2)
    folder = tmp_path / "global_step150000"
    new = {"dense_h_to_4h": "linear1", "dense_4h_to_h": "linear2", "layernorm.weight": "layernorm.scale"}
    for file in folder.glob("layer_*"):
        state = {}
        for name, weight in torch.load(file).items():
            for before, after in new.items():
                name = name.replace(before, after)  # noqa: PLW2901
            state[name] = weight
        torch.save(state, file)
    has(summary_of(tmp_path), parameters=NEOX_PARAMETERS, model=SHAPE)


def test_frozen_and_shared_weights_of_zero(tmp_path):
    state = {
        "module": {"a": torch.empty(0), "b": torch.empty(0), "head": torch.empty(0), "mask": torch.zeros(9)},
        "param_shapes": [{"a": torch.Size([2, 3]), "head": torch.Size([2, 3])}],
        "frozen_param_shapes": {"b": torch.Size([4])},
        "shared_params": {"head": "a"},
        "buffer_names": ["mask"],
    }
    torch.save(state, tmp_path / "mp_rank_00_model_states.pt")
    summary = summary_of(tmp_path)
    assert summary.parameters == 2 * 3 + 4
    assert summary.model == {}


def test_torch_files_of_hugging_face(tmp_path):
    config, _, parameters = CONFIGS["GPT-2"]
    state = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).transformer.state_dict()
    masks = {f"h.{number}.attn.bias": torch.ones(1, 1, 8, 8) for number in range(LAYERS)}  # in files of before 2023
    torch.save(state | masks, tmp_path / "pytorch_model.bin")
    config.save_pretrained(tmp_path)
    has(summary_of(tmp_path), format="Hugging Face, torch files", parameters=parameters, dtypes=("fp32",), model=HEADED)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of this program, which megatron-core has written."""
    folder = tmp_path_factory.mktemp("run") / "iter_0000003"
    with tiny.engine_of(tiny.tiny("model.num_layers=2", "parallel.use_distributed_optimizer=true")) as engine:
        tiny.train(engine, 0, 1)
        tiny.save(engine, folder, 3)
        return folder, sum(parameter.numel() for parameter in engine.chunks[0].parameters())


def test_our_own(saved):
    folder, parameters = saved
    has(
        summary_of(folder), format="pretrain", version="format 3", iteration=3, parameters=parameters, dtypes=("fp32",),
        contents=EVERYTHING,
        model={"num_layers": 2, "hidden_size": 64, "vocab_size": tiny.VOCAB_SIZE, "num_attention_heads": 4},
    )  # fmt: skip


def test_megatron_lms_sharded_format(saved, tmp_path):
    """The same tensors; common.pt has Megatron-LM's args instead of our values."""
    folder, parameters = saved
    for entry in folder.iterdir():
        if entry.name != "checksums.txt":  # which are of our values
            (tmp_path / entry.name).symlink_to(entry)
    args = argparse.Namespace(num_attention_heads=4, tensor_model_parallel_size=4, pipeline_model_parallel_size=2)
    common = {"args": args, "checkpoint_version": 3.0, "iteration": 7, "opt_param_scheduler": {"max_lr": 1.0}}
    (tmp_path / "common.pt").unlink()
    torch.save(common, tmp_path / "common.pt")
    summary = summary_of(tmp_path)
    assert (summary.format, summary.version) == ("Megatron-LM, sharded", "torch_dist 1")
    assert (summary.iteration, summary.parameters, summary.contents) == (7, parameters, EVERYTHING)
    assert (summary.parts.tensor, summary.parts.pipeline) == (4, 2)
    assert {key: summary.model[key] for key in ("num_layers", "hidden_size", "num_attention_heads")} == {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
