"""Every recipe that comes with pretrain is valid everywhere, names no hardware, and can be made small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pretrain.recipe import lay_out, load_recipe, make_recipe, to_yaml
from pretrain.report.flops import active_parameter_count, parameter_count
from pretrain.training.progress import BatchSizes, Progress, total_iterations
from recipe.deepspeed.test_seeds import GPT2_345M, TINY_RAMPUP

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = sorted(FOLDER.glob("*.yml"))

HARDWARE = (
    r"cuda|cudnn|nccl|nvidia|\bgpus?\b|[avh]100|ascend|\bnpus?\b|hccl|cann|huawei|\brocm|\bamd\b|\btpus?\b|\bcpus?\b|"
    r"gloo|\bxpus?\b|\b910"
)
HOST_MEMORY = "offload_optimizer: {device: cpu}"
"""DeepSpeed's name for the memory of the host, on any device."""

SMALL = (
    "model.num_layers=2",
    "model.hidden_size=128",
    "model.num_attention_heads=4",
    "model.seq_length=64",
    "parallel.tensor_model_parallel_size=2",
    "parallel.pipeline_model_parallel_size=2",
    "train.micro_batch_size=1",
    "train.global_batch_size=8",
)


@pytest.fixture(params=RECIPES, ids=[path.stem for path in RECIPES])
def path(request):
    return request.param


def test_the_documented_recipes_exist():
    assert {path.stem for path in RECIPES} >= {
        *("quickstart", "gpt2-345m", "gpt3", "neox20b"),
        *("gpt2-345m-zero3", "tiny-rampup", "gpt3-80gb", "llama3-8b", "qwen3-1.7b", "tinyllama-quickstart"),
        *("mixtral-8x7b", "qwen3-30b-a3b", "shakespeare-char"),
    }


def test_a_recipe_loads_and_its_dump_is_the_same_recipe(path):
    recipe = load_recipe(path)
    assert make_recipe(yaml.safe_load(to_yaml(recipe))) == recipe


def test_a_recipe_names_no_hardware(path):
    text = path.read_text(encoding="utf-8").replace(HOST_MEMORY, "")
    assert re.findall(HARDWARE, text, re.IGNORECASE) == []


def test_a_recipe_offers_its_schema_to_the_editor(path):
    first_line = path.read_text(encoding="utf-8").partition("\n")[0]
    assert (path.parent / first_line.rpartition("=")[2]).exists()


@pytest.mark.parametrize(
    ("name", "more"), [("gpt3", ["train.train_samples=80"]), ("neox20b", ["train.train_iters=10"])]
)
def test_the_large_ones_scale_down_to_four_processes(name, more):
    if name == "neox20b":
        more = [*more, "schedule.lr_decay_iters=10"]
    recipe = load_recipe(FOLDER / f"{name}.yml", [*SMALL, *more, "precision.dtype=fp32"])
    assert recipe.model.ffn_hidden_size == 512
    assert lay_out(recipe, 4).num_microbatches(8) == 8


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b"])
def test_those_with_experts_scale_down_to_four_processes(name):
    few = ("model.num_experts=8", "model.moe_router_topk=2", "model.num_query_groups=2")
    ranks = ("expert_model_parallel_size=2", "expert_tensor_parallel_size=1", "sequence_parallel=true")
    short = ("train.train_iters=10", "schedule.lr_warmup_iters=1")
    recipe = load_recipe(FOLDER / f"{name}.yml", [*SMALL, *few, *(f"parallel.{each}" for each in ranks), *short])
    assert lay_out(recipe, 4).expert_data_parallel_size == 1


def test_quickstart_runs_on_any_small_number_of_ranks():
    recipe = load_recipe(FOLDER / "quickstart.yml")
    assert lay_out(recipe, 1).data_parallel_size == 1
    assert recipe.tokenizer.vocab_size % 256 == 0
    layers = 12 * recipe.model.num_layers * recipe.model.hidden_size**2
    assert 8e6 < layers + recipe.tokenizer.vocab_size * recipe.model.hidden_size < 12e6


def test_tinyllama_has_the_proportions_and_the_text_of_its_models():
    recipe, quickstart = load_recipe(FOLDER / "tinyllama-quickstart.yml"), load_recipe(FOLDER / "quickstart.yml")
    model = recipe.model
    assert (model.ffn_hidden_size / model.hidden_size, model.layernorm_epsilon, model.rotary_base) == (2.75, 1e-5, 1e4)
    assert (recipe.data, recipe.train, recipe.optimizer) == (quickstart.data, quickstart.train, quickstart.optimizer)


def test_gpt3_has_175_billion_parameters_and_a_batch_of_1536_on_one_replica():
    recipe = load_recipe(FOLDER / "gpt3.yml")
    model = recipe.model
    layers = model.num_layers * (4 * model.hidden_size**2 + 2 * model.hidden_size * model.ffn_hidden_size)
    assert layers + 50257 * model.hidden_size == pytest.approx(175e9, rel=0.01)
    assert lay_out(recipe, 64).num_microbatches(recipe.train.global_batch_size) == 1536
    assert [(part.weight, part.path.rpartition("/")[2][:9]) for part in recipe.data.blend or ()] == [
        (0.35, "wikipedia"),
        (0.65, "openwebte"),
    ]
    assert recipe.train.train_samples is not None
    assert recipe.train.train_samples * model.seq_length == pytest.approx(300e9, rel=1e-6)


def test_gpt3_80gb_is_gpt3_with_sequence_parallelism_instead_of_recomputation():
    recipe, plain = load_recipe(FOLDER / "gpt3-80gb.yml"), load_recipe(FOLDER / "gpt3.yml")
    assert (recipe.parallel.sequence_parallel, recipe.recompute.granularity) == (True, "none")
    parallel = plain.parallel.model_copy(update={"sequence_parallel": True})
    assert plain.model_copy(update={"parallel": parallel, "recompute": recipe.recompute}) == recipe


def settings_in_comments(path):
    """Return what each line of a recipe's comments proposes to set."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    found = [re.findall(r"--set (\S+=\S+)", line) for line in lines]
    return [[setting.rstrip(".,)") for setting in settings] for settings in found if settings]


def test_gpt3_for_throughput_only_saves_and_evaluates_nothing_and_starts_at_a_scale_that_fits():
    settings = [setting for line in settings_in_comments(FOLDER / "gpt3.yml") for setting in line]
    recipe = load_recipe(FOLDER / "gpt3.yml", settings)
    assert (recipe.train.exit_interval, recipe.logging.log_interval) == (10, 1)
    assert (recipe.checkpoint.save, recipe.evaluation.interval) == (False, 0)
    assert recipe.precision.initial_loss_scale == 2**12


def test_settings_in_a_recipes_comments_are_valid(path):
    for settings in settings_in_comments(path):
        assert load_recipe(path, settings) != load_recipe(path)


def test_the_sections_of_a_recipe_that_came_from_elsewhere_say_from_where(path):
    if path.stem in {"quickstart", "tinyllama-quickstart", "moe-quickstart", "long-context-quickstart"}:
        return
    sections = re.split(r"\n(?=(?!extends)\w+:)", path.read_text(encoding="utf-8"))[1:]
    unexplained = [section.partition(":")[0] for section in sections if "#" not in section]
    assert set(unexplained) <= {"evaluation", "logging", "checkpoint"} or "as all sections below" in sections[0]


def test_gpt2_follows_the_published_log():
    recipe = load_recipe(FOLDER / "gpt2-345m.yml")
    assert recipe.padded_vocab_size(50257) == 50304
    assert lay_out(recipe, 1).num_microbatches(2) == 2
    assert recipe.schedule.lr_decay_iters == 320000


def test_neox_is_the_published_model():
    recipe = load_recipe(FOLDER / "neox20b.yml")
    assert recipe.model.head_size == 96
    assert recipe.model.rotary_size == 24
    assert recipe.padded_vocab_size(50277) == 50432
    assert lay_out(recipe, 96).data_parallel_size == 12
    assert lay_out(recipe, 96).num_microbatches(1536) == lay_out(recipe, 8).num_microbatches(128) == 32
    assert recipe.precision.initial_loss_scale == 2**12
    assert recipe.parallel.ddp_bucket_size == 1.26e9


def test_llama3_is_the_published_model():
    recipe = load_recipe(FOLDER / "llama3-8b.yml")
    assert (recipe.model.head_size, recipe.model.rotary_size) == (128, 128)
    assert recipe.padded_vocab_size(128256) == 128256
    assert parameter_count(recipe.model, 128256) == 8_030_261_248
    assert lay_out(recipe, 64).data_parallel_size == 32
    assert lay_out(recipe, 8).num_microbatches(512) == 128
    assert recipe.train.global_batch_size * recipe.model.seq_length == 2**22


def test_qwen3_is_the_published_model():
    recipe = load_recipe(FOLDER / "qwen3-1.7b.yml")
    assert recipe.padded_vocab_size(151936) == 151936
    assert parameter_count(recipe.model, 151936) == 1_720_574_976
    assert lay_out(recipe, 16).num_microbatches(1024) == 32
    assert recipe.train.global_batch_size * recipe.model.seq_length == 2**22


def test_mixtral_is_the_published_model():
    recipe = load_recipe(FOLDER / "mixtral-8x7b.yml")
    assert recipe.padded_vocab_size(32000) == 32000
    assert parameter_count(recipe.model, 32000) == 46_702_792_704
    assert recipe.train.global_batch_size * recipe.model.seq_length == 2**22
    assert (lay_out(recipe, 64).data_parallel_size, lay_out(recipe, 64).expert_data_parallel_size) == (2, 2)


def test_qwen3_with_experts_is_the_published_model():
    recipe, dense = load_recipe(FOLDER / "qwen3-30b-a3b.yml"), load_recipe(FOLDER / "qwen3-1.7b.yml")
    assert recipe.padded_vocab_size(151936) == 151936
    assert parameter_count(recipe.model, 151936) == 30_532_122_624
    assert active_parameter_count(recipe.model, 151936) == 3_353_032_704
    assert (lay_out(recipe, 64).data_parallel_size, lay_out(recipe, 64).expert_data_parallel_size) == (32, 4)
    assert (recipe.train.train_iters, recipe.optimizer) == (dense.train.train_iters, dense.optimizer)


def test_llama31_has_scaled_rope_and_otherwise_the_same_shape():
    path = FOLDER / "llama3-8b.yml"
    (settings,) = (each for each in settings_in_comments(path) if "model.use_rope_scaling=true" in each)
    scaled, model = load_recipe(path, settings).model, load_recipe(path).model
    factors = (scaled.rope_scaling_factor, scaled.rope_low_freq_factor, scaled.rope_high_freq_factor)
    assert (*factors, scaled.original_max_position_embeddings) == (8, 1, 4, 8192)
    assert scaled.model_copy(update={"use_rope_scaling": False, "max_position_embeddings": 8192}) == model


def test_zero3_is_gpt2_on_four_devices_a_replica():
    recipe, plain = (load_recipe(FOLDER / f"{name}.yml") for name in ("gpt2-345m-zero3", "gpt2-345m"))
    assert recipe.model == plain.model
    assert recipe.optimizer == plain.optimizer
    assert recipe.schedule == plain.schedule
    assert recipe.padded_vocab_size(50257) == 50688
    assert lay_out(recipe, 4).data_parallel_size == 1
    assert lay_out(recipe, 4).num_microbatches(recipe.train.global_batch_size) == 4
    assert lay_out(recipe, 8).data_parallel_size == 2


@pytest.mark.parametrize(
    ("name", "file", "told"),
    [
        ("gpt2-345m-zero3", GPT2_345M, ()),
        ("tiny-rampup", TINY_RAMPUP, ("train.micro_batch_size", "train.global_batch_size", "optimizer.clip_grad")),
    ],
)
def test_a_recipe_says_what_the_file_says_that_it_came_with(name, file, told, tmp_path):
    (tmp_path / "ds_config.json").write_text(file)
    engine = f"engine={{name: deepspeed, deepspeed_config: {tmp_path / 'ds_config.json'}}}"
    by_file = load_recipe(FOLDER / f"{name}.yml", [engine, "precision=null", *(f"{key}=null" for key in told)])
    assert by_file == load_recipe(FOLDER / f"{name}.yml")


@pytest.mark.parametrize(
    ("name", "base", "other"),
    [
        ("gpt2-345m-evaluate", "gpt2-345m", {"train.train_iters", "checkpoint.load", "checkpoint.save_interval"}),
        (
            "neox20b-finetune",
            "neox20b",
            {"train.train_iters", "train.global_batch_size", "data.path", "optimizer.lr", "schedule.min_lr"}
            | {"schedule.lr_decay_iters", "checkpoint.load", "checkpoint.finetune"},
        ),
    ],
)
def test_a_recipe_that_starts_from_published_weights_is_the_one_that_trained_them(name, base, other):
    values, plain = (_flat(load_recipe(FOLDER / f"{each}.yml")) for each in (name, base))
    assert {key for key in values if values[key] != plain[key]} - {"evaluation.target_loss"} == other


def _flat(recipe):
    return {f"{section}.{key}": value for section, keys in recipe.model_dump().items() for key, value in keys.items()}


def test_a_target_is_stated_where_a_loss_is_known():
    targets = {path.stem: load_recipe(path).evaluation.target_loss for path in RECIPES}
    measured = {"quickstart", "tinyllama-quickstart", "moe-quickstart", "shakespeare-char"}
    assert {name for name, target in targets.items() if target} == {*measured, "gpt2-345m", "gpt2-345m-zero3"}
    readme = (FOLDER.parent / "README.md").read_text(encoding="utf-8").replace("\n", " ")
    assert [name for name, target in targets.items() if target and f"{name} {target:g} (" not in readme] == []


def samples_of(sizes, iterations):
    """The samples that so many steps from the start consume."""
    consumed = 0
    for _ in range(iterations):
        consumed += sizes.at(consumed)
    return consumed


def test_the_readme_says_on_how_many_tokens_a_recipe_trains(path):
    row = next(line for line in (FOLDER.parent / "README.md").read_text().splitlines() if f"| [{path.stem}](" in line)
    number, unit = row.split(" | ")[3].split()
    recipe = load_recipe(path)
    length = total_iterations(recipe, Progress())
    iterations = min(length, recipe.train.exit_interval or length)
    tokens = samples_of(BatchSizes.of(recipe), iterations) * recipe.model.seq_length
    assert float(number) * {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit] == pytest.approx(tokens, rel=5e-3)


def test_rampup_grows_from_2_to_16_and_leaves_at_iteration_100():
    recipe = load_recipe(FOLDER / "tiny-rampup.yml")
    sizes = BatchSizes.of(recipe)
    assert [sizes.at(samples_of(sizes, done)) for done in (0, 71, 72, 100)] == [2, 2, 4, 4]
    assert [sizes.at(samples) for samples in (999, 1000, 1001)] == [14, 16, 16]
    assert (recipe.train.exit_interval, total_iterations(recipe, Progress())) == (100, 748)
    assert recipe.padded_vocab_size(50257) == 50432
    assert lay_out(recipe, 2).num_microbatches(2) == 2
