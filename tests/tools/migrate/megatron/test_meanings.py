"""Meanings of Megatron's flags: every key and option exists, every value fits, every sentence can be shown."""

from __future__ import annotations

import re
from importlib import resources
from typing import Annotated

import pytest
from pydantic import TypeAdapter

from pretrain.cli.run import command as run_command
from pretrain.recipe.recipe import Recipe, keys_of_recipe, walk
from pretrain.tools.corpus.data_command import build as build_command
from pretrain.tools.migrate.meaning import Mapped, NotNeeded, NotSupported, meanings_in
from pretrain.tools.migrate.megatron.meanings import (
    BUILD_MEANINGS,
    LAUNCHERS,
    MEANINGS,
    MEANINGS_OF,
    SPELLINGS,
    group_of,
    grouped,
    is_listed,
    meaning_of,
    spelled,
)

EVERY = [
    *((name, meaning) for table in (MEANINGS, LAUNCHERS, BUILD_MEANINGS) for name, meaning in table.items()),
    *((name, meaning) for table in MEANINGS_OF.values() for name, meaning in table.items()),
]
FOLDER = resources.files("pretrain.tools.migrate").joinpath("tables")
TABLES = sorted(file.name for file in FOLDER.iterdir() if file.name.endswith("_meanings.tsv"))
CARRIED = [(name, meaning) for name, meaning in EVERY if isinstance(meaning, Mapped)]
FIELDS = dict(walk(Recipe))


def texts(meaning):
    """Return what a meaning says to people."""
    match meaning:
        case Mapped():
            return [meaning.how, meaning.note]
        case NotNeeded("option"):
            return []
        case NotNeeded(text=text) | NotSupported(change=text):
            return [text]


def is_option(meaning):
    return isinstance(meaning, NotNeeded) and meaning.reason == "option"


@pytest.mark.parametrize("table", TABLES)
def test_no_name_is_in_a_table_twice(table):
    names = [name for name, _ in meanings_in(table.removesuffix("_meanings.tsv"))]
    assert len(set(names)) == len(names) > 3


def test_no_flag_is_in_two_tables():
    names = [name for table in ("megatron", "mindspeed") for name, _ in meanings_in(table)]
    assert sorted(names) == sorted(MEANINGS)


OF_A_PATH_OR_A_LIST = {"data.train_data_path", "data.valid_data_path", "data.test_data_path"}


def test_every_key_exists_and_is_no_section():
    known = keys_of_recipe()
    sections = {path.rpartition(".")[0] for path in known} - OF_A_PATH_OR_A_LIST
    assert [
        (name, meaning.key) for name, meaning in CARRIED if meaning.key not in known or meaning.key in sections
    ] == []


@pytest.mark.parametrize(
    ("key", "value"), sorted({(m.key, ours) for _, m in CARRIED for ours in m.values.values()}, key=str), ids=str
)
def test_every_value_is_one_of_the_key(key, value):
    field = FIELDS[key]
    assert TypeAdapter(Annotated[field.annotation, "a key", *field.metadata]).validate_python(value) == value


@pytest.mark.parametrize("options", [(LAUNCHERS, run_command), (BUILD_MEANINGS, build_command)], ids=["run", "build"])
def test_every_option_exists(options):
    table, command = options
    own = {name for option in command.params for name in option.opts}
    named = " ".join(meaning.text for meaning in table.values() if is_option(meaning))
    assert set(re.findall(r"--[\w-]+", named)) <= own


def test_every_sentence_begins_in_lower_case_and_has_no_period():
    def is_fit(text):
        return (
            text == text.strip() and not text.endswith((".", ",", ";")) and not text[:1].isupper() and ". " not in text
        )

    named = ("DeepSpeed", "SIGTERM", "TensorBoard", "GPT2BPETokenizer", "TensorBoard's", "LayerNorm")
    said = [(name, text) for name, meaning in EVERY for text in texts(meaning) if text]
    assert [pair for pair in said if not is_fit(pair[1]) and not pair[1].startswith(named)] == []


def test_a_meaning_that_is_no_key_says_why():
    assert [name for name, meaning in EVERY if not isinstance(meaning, Mapped) and not all(texts(meaning))] == []


def test_flags_that_belong_to_another_name_one_that_is_known():
    """The flag that is named says what is lost, so that its belongings need not."""
    belongings = [text for _, meaning in EVERY for text in texts(meaning) if text.startswith("it belongs to ")]
    named = {word for text in belongings for word in re.findall(r"\b[a-z]\w*_\w+\b", text)}
    assert [name for name in named if not isinstance(MEANINGS.get(name), NotSupported)] == []
    assert len(named) > 20


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("num_layers", "model.num_layers", {}),
        ("rope_theta", "model.rotary_base", {}),
        ("swiglu", "model.activation", {True: "swiglu"}),
        ("bias_gelu_fusion", "model.activation", {True: "gelu_tanh", False: "gelu"}),
        ("grad_reduce_in_bf16", "precision.grad_reduce_in_fp32", {True: False}),
        ("checkpoint_activations", "recompute.granularity", {True: "full"}),
        ("skip_train", "train.train_iters", {True: 0}),
        ("kill_switch_file", "train.kill_switch_path", {}),
        ("override_lr_scheduler", "schedule.override_opt_param_scheduler", {}),
        ("batch_size", "train.micro_batch_size", {}),
        ("cpu_torch_adam", "engine.zero.offload_optimizer.cpu_adam", {True: "torch"}),
    ],
)
def test_a_flag_is_carried_over(name, key, values):
    meaning = MEANINGS[name]
    assert (meaning.key, dict(meaning.values)) == (key, values)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("use_checkpoint_args", NotSupported),  # it would take the model from elsewhere
        ("lr_warmup_init", NotSupported),
        ("num_experts_switch", NotSupported),
        ("moe_permute_fusion", "no effect"),  # scripts of dense models state it too
        ("mask_prob", "not read"),
        ("transformer_impl", "no effect"),
        ("tensorboard_dir", "replaced"),
    ],
)
def test_a_flag_that_is_no_key(name, kind):
    meaning = meaning_of(name)
    assert isinstance(meaning, kind) if kind is NotSupported else meaning.reason == kind


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("num_experts_switch", (0, 1, [0], [1])),
        ("dataloader_type", ("single",)),
        ("weight_decay_incr_style", ("constant",)),
        ("rerun_mode", ("disabled",)),
        ("lr_warmup_init", ()),
    ],
)
def test_values_with_which_nothing_is_lost(name, values):
    assert MEANINGS[name].unless == values


def test_a_program_can_have_a_meaning_of_its_own():
    assert meaning_of("DDP_impl", "megatron-lm-2.6").reason == "no effect"
    assert isinstance(meaning_of("DDP_impl", "megatron-deepspeed-2023"), NotSupported)
    assert meaning_of("clip_grad", "megatron-lm").how == ""
    for program in ("megatron-deepspeed", "bigscience-megatron-deepspeed"):
        assert "gradient_clipping of DeepSpeed's file" in meaning_of("clip_grad", program).how
    assert meaning_of("no_such_flag") is None


@pytest.mark.parametrize("name", ["linear_attention", "moe_bogus_thing", "expert_x", "index_x", "export_x", "vision_x"])
def test_only_flags_that_a_program_has_belong_to_a_group(name):
    assert (meaning_of(name), group_of(name) is not None) == (None, True)


def test_every_flag_of_a_group_belongs_to_it():
    assert [name for name in grouped() if group_of(name) is None or is_listed(name)] == []
    assert grouped() >= {"moe_permute_fusion", "linear_num_key_heads", "lora_r", "hccl_op_mode", "retro_num_neighbors"}


@pytest.mark.parametrize(
    ("flag", "dest", "given"),
    [
        ("no_bias_gelu_fusion", "bias_gelu_fusion", False),
        ("disable_bias_linear", "add_bias_linear", False),
        ("no_load_optim", "no_load_optim", None),
        ("fp8_format", "fp8", None),
        ("overlap_p2p_communication", "overlap_p2p_comm", True),
        ("no_such_flag", "no_such_flag", None),
    ],
)
def test_a_flag_is_found_by_its_spelling(flag, dest, given):
    assert spelled(flag, MEANINGS) == (dest, given)


def test_every_spelling_leads_to_a_meaning():
    assert [flag for flag, found in SPELLINGS.items() if meaning_of(found.name) is None or flag in MEANINGS] == []


@pytest.mark.parametrize(
    ("flag", "dest", "given"),
    [
        ("disable_bias_linear", "add_bias_linear", False),
        ("no_position_embedding", "add_position_embedding", False),
        ("no_query_key_layer_scaling", "apply_query_key_layer_scaling", False),
        ("no_rope_fusion", "apply_rope_fusion", False),
        ("overlap_p2p_communication", "overlap_p2p_comm", True),
        ("persistent_save_interval", "save_interval", None),
        ("rotary_position_embeddings_theta", "rope_theta", None),
        ("vocab", "vocab_file", None),
        ("no_no_bias_gelu_fusion", "no_no_bias_gelu_fusion", None),
    ],
)
def test_a_flag_of_another_name_means_its_dest(flag, dest, given):
    assert spelled(flag, MEANINGS) == (dest, given)
