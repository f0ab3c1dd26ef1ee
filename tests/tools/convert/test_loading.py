"""Weights of another program's checkpoint train as the same weights of our own do, in every layout and engine."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from megatron.core.dist_checkpointing.mapping import ShardedTensor

from engine import tiny
from engine.expert_layouts import DEEPSEEK, MIXTRAL
from engine.layouts import GPT2, LLAMA, NEOX, QWEN, QWEN3, STAGE, WINDOW, ZERO1
from pretrain.checkpoint import storage
from pretrain.checkpoint.folder import CheckpointFolder
from pretrain.checkpoint.starting_checkpoint import require_start
from pretrain.errors import CheckpointError
from pretrain.model.weights import global_names
from pretrain.recipe.sections.model import ModelSection
from pretrain.tools.convert.commands import recipe_section
from pretrain.tools.convert.conversion import ConvertOptions, convert
from pretrain.tools.convert.model_weights import FileLayout
from pretrain.tools.convert.registry import WRITE, read_weights
from pretrain.tools.convert.target import write_target
from pretrain.tools.convert.trainer_calls import _part_of_rank, foreign_summary, load, require_fitting

SMALL = ("model.num_layers=2",)
MODELS = {
    "GPT-2": GPT2,
    "NeoX": (*NEOX, "model.embedding_layernorm=false"),  # which no other program here has
    "Llama": LLAMA,
    "Qwen": QWEN,
    "Qwen 3": QWEN3,
    "Qwen 3 of Megatron-LM": (*QWEN3, *WINDOW),
    "Mistral": (*LLAMA, *WINDOW),
    "Mixtral": MIXTRAL,
    "GLM-4.5": (*DEEPSEEK, "model.moe_shared_expert_intermediate_size=96"),  # twice an expert's, as it can say
    "GLM-4.5 of Megatron-LM": (*DEEPSEEK, "model.moe_router_topk=4"),  # where both choose the same groups
}
FORMATS = {
    "GPT-2": ConvertOptions(format="megatron", layout=FileLayout(tensor=2, pipeline=2)),
    "NeoX": ConvertOptions(format="neox", layout=FileLayout(tensor=2)),
    "Llama": ConvertOptions(format="torch_dist"),
    "Qwen": ConvertOptions(format="huggingface"),
    "Qwen 3": ConvertOptions(format="huggingface"),
    "Mistral": ConvertOptions(format="huggingface"),
    "Qwen 3 of Megatron-LM": ConvertOptions(format="megatron", layout=FileLayout(tensor=2)),
    "Mixtral": ConvertOptions(format="torch_dist"),
    "GLM-4.5": ConvertOptions(format="huggingface"),
    "GLM-4.5 of Megatron-LM": ConvertOptions(format="torch_dist"),
}
FULL = {"Mixtral", "GLM-4.5 of Megatron-LM"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.full] * (name in FULL)) for name in MODELS]
)
def ours(request, tmp_path_factory):
    """A model after one iteration: its name, its overrides and the folder of its checkpoints."""
    folder = tmp_path_factory.mktemp("ours")
    overrides = (*SMALL, *MODELS[request.param])
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        tiny.train(engine, 0, 1)
        write = partial(storage.save, engine, progress={"iteration": 1, "consumed_samples": 8, "skipped_iterations": 0})
        CheckpointFolder(folder).save(1, write, is_main=True, barrier=lambda: None)
    return request.param, overrides, folder


def parameters(engine):
    """Return copies of the parameters by their names over all stages."""
    return {name: weight.detach().clone() for name, weight in global_names(engine.chunks[0].module)}


@pytest.mark.full
@pytest.mark.parametrize("ours", [name for name in MODELS if name != "GPT-2"], indirect=True)
def test_it_trains_as_our_own_weights_do(ours, tmp_path):
    check_training(ours, tmp_path, ())


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
@pytest.mark.parametrize("engine_overrides", [(), ZERO1, STAGE[3]], ids=["megatron", "ZeRO-1", "DeepSpeed, stage 3"])
def test_it_trains_so_in_every_engine(ours, tmp_path, engine_overrides):
    check_training(ours, tmp_path, engine_overrides)


def check_training(ours, tmp_path, engine_overrides):
    name, overrides, folder = ours
    convert(folder, tmp_path / "theirs", FORMATS[name])
    losses = []
    for start in (
        lambda engine: storage.load(engine, folder / "iter_0000001", weights_only=True),
        lambda engine: load(engine, tmp_path / "theirs", finetune=True),
    ):
        with tiny.engine_of(tiny.tiny(*overrides, *engine_overrides)) as engine:
            start(engine)
            losses.append(tiny.train(engine, 0, 2))
    assert losses[0] == losses[1]


@pytest.mark.parametrize("ours", ["GPT-2", "Llama"], indirect=True)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_tensor_parallel_rank_gets_its_part(ours, ranks):
    _, _, folder = ours
    weights = read_weights(folder, {})
    read = partial(_part_of_rank, weights, tiny.VOCAB_SIZE)
    whole = torch.cat(
        [weights.tensors[f"decoder.layers.{layer}.mlp.linear_fc2.weight"].whole()[None] for layer in (0, 1)]
    )
    rows = 300 // ranks * ranks
    for rank in range(ranks):
        columns = torch.empty(whole.shape[1], whole.shape[2] // ranks)
        wanted = ShardedTensor.from_rank_offsets(
            "decoder.layers.mlp.linear_fc2.weight", columns, (0, 1, 2), (2, rank, ranks), prepend_axis_num=1
        )
        assert torch.equal(read(wanted), whole[1].chunk(ranks, 1)[rank])
        part = torch.empty(rows // ranks, whole.shape[1])
        wanted = ShardedTensor.from_rank_offsets("embedding.word_embeddings.weight", part, (0, rank, ranks))
        embedding = weights.tensors["embedding.word_embeddings.weight"].whole()
        assert torch.equal(read(wanted), embedding[:rows].chunk(ranks)[rank])


@pytest.mark.parametrize("ours", ["GLM-4.5"], indirect=True)
def test_a_rank_gets_its_parts_of_its_experts(ours):
    _, _, folder = ours
    weights = read_weights(folder, {})
    read = partial(_part_of_rank, weights, tiny.VOCAB_SIZE)
    for linear, dim in (("linear_fc1", 1), ("linear_fc2", 2)):
        whole = weights.tensors[f"decoder.layers.1.mlp.experts.{linear}.weight"].whole()
        expected = whole.chunk(4)[3].chunk(2, dim)[1]
        wanted = ShardedTensor.from_rank_offsets(
            f"decoder.layers.1.mlp.experts.experts.{linear}.weight", expected.contiguous() * 0, (0, 3, 4), (dim, 1, 2)
        )
        assert torch.equal(read(wanted), expected)


@pytest.mark.parametrize("ours", ["GPT-2", "Qwen"], indirect=True)
def test_iteration_samples_and_schedule_go_on_where_the_files_tell_them(ours, tmp_path):
    _, overrides, folder = ours
    convert(folder, tmp_path / "bare", ConvertOptions(format="pretrain"))
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        whole = storage.load(engine, folder / "iter_0000001", weights_only=False)
        expected = (engine.learning_rate, parameters(engine))
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        bare = storage.load(engine, tmp_path / "bare" / "iter_0000001", weights_only=False)
        assert bare.notices == ["weights alone; the optimizer starts without state"]
        assert engine.learning_rate == expected[0]
        for name, weight in parameters(engine).items():
            assert torch.equal(weight, expected[1][name]), name
    assert {name: bare.progress[name] for name in whole.progress} == whole.progress


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_another_model_is_refused_with_the_keys_that_differ(ours, tmp_path):
    _, overrides, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format="torch_dist"))
    recipe = tiny.tiny(*overrides, "model.num_layers=3", "model.hidden_size=128")
    with pytest.raises(CheckpointError) as refused:
        require_start(str(tmp_path / "theirs"), None, recipe)
    first, second, third = str(refused.value).splitlines()
    assert "is of another model: model.num_layers 2 (recipe: 3), model.hidden_size 64 (recipe: 128)" in first
    assert "prints the section that fits" in second
    assert third == "Change the recipe, or choose another checkpoint."


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_a_tokenizer_of_more_tokens_is_refused(ours, tmp_path, monkeypatch):
    _, overrides, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format="torch_dist"))
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:
        monkeypatch.setattr(engine, "vocab_size", 1000)
        with pytest.raises(CheckpointError, match=r"has 300 tokens, and the recipe's tokenizer 1,000"):
            load(engine, tmp_path / "theirs", finetune=True)


@pytest.mark.full
@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_converted_weights_of_an_unknown_vocabulary_need_a_tokenizer_that_padding_explains(ours, tmp_path):
    _, overrides, folder = ours
    unknown = replace(read_weights(folder, {}), vocab_size=None)
    target = WRITE["pretrain"](unknown, FileLayout())
    write_target(target, tmp_path / "bare", "identity")
    with tiny.engine_of(tiny.tiny(*overrides)) as engine:  # 300 tokens, 384 rows
        storage.load(engine, tmp_path / "bare" / "iter_0000001", weights_only=True)
        few = replace(unknown.with_vocabulary(128), vocab_size=None)
        write_target(WRITE["pretrain"](few, FileLayout()), tmp_path / "few", "identity")
        with pytest.raises(CheckpointError, match=r"model\.vocab_size None \(recipe: 300\)"):
            storage.load(engine, tmp_path / "few" / "iter_0000001", weights_only=True)


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
@pytest.mark.parametrize("to", ["megatron", "torch_dist"])
def test_a_schedule_goes_with_megatrons_formats(ours, tmp_path, to):
    _, _, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format=to))
    assert read_weights(tmp_path / "theirs", {}).schedule == read_weights(folder, {}).schedule


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_a_setting_that_the_files_imply_is_not_the_recipes(ours, tmp_path):
    """Releases without arguments have the tanh approximation, whatever the number of heads that they do not tell."""
    _, overrides, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format="megatron"))
    (file,) = (tmp_path / "theirs").rglob("model_optim_rng.pt")
    state = torch.load(file, weights_only=False)
    torch.save({"model": state["model"], "checkpoint_version": 3.0, "iteration": 0}, file)
    next((tmp_path / "theirs").rglob("checksums.txt")).unlink()
    with pytest.raises(CheckpointError, match=r"model\.activation gelu_tanh \(recipe: gelu\)"):
        require_start(str(tmp_path / "theirs"), None, tiny.tiny(*overrides))
    require_start(str(tmp_path / "theirs"), None, tiny.tiny(*overrides, "model.activation=gelu_tanh"))


@pytest.mark.full
@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_a_damaged_file_is_an_error_of_two_lines(ours, tmp_path):
    _, overrides, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format="torch_dist"))
    victim = max((tmp_path / "theirs" / "iter_0000001").glob("*.distcp"), key=lambda file: file.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1000])
    (victim.parent / "checksums.txt").unlink()  # as Megatron-LM, which writes none
    with tiny.engine_of(tiny.tiny(*overrides)) as engine, pytest.raises(CheckpointError, match="is cut off") as error:
        load(engine, tmp_path / "theirs", finetune=True)
    assert str(victim) in str(error.value)
    assert str(error.value).count("\n") == 1


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_ours_and_folders_without_a_checkpoint_are_not_foreign(ours, tmp_path):
    assert foreign_summary(ours[2]) is None
    assert foreign_summary(tmp_path) is None
    assert foreign_summary(tmp_path / "absent") is None


@pytest.mark.parametrize("ours", ["GPT-2"], indirect=True)
def test_a_run_saves_into_no_folder_of_another_program(ours, tmp_path):
    _, overrides, folder = ours
    convert(folder, tmp_path / "theirs", ConvertOptions(format="torch_dist"))
    with pytest.raises(CheckpointError, match=r"checkpoint.save: .* holds checkpoints of another program"):
        require_start(str(tmp_path / "theirs"), CheckpointFolder(tmp_path / "theirs"), tiny.tiny(*overrides))


def test_the_section_that_is_printed_fits(ours, tmp_path):
    name, overrides, folder = ours
    convert(folder, tmp_path / "theirs", FORMATS[name])
    section = recipe_section(read_weights(tmp_path / "theirs", {}).model)
    recipe = tiny.tiny(*overrides)
    fitting = recipe.model_copy(update={"model": ModelSection.model_validate(json.loads(json.dumps(section)))})
    summary = foreign_summary(tmp_path / "theirs")
    assert summary is not None
    require_fitting(summary, fitting)
