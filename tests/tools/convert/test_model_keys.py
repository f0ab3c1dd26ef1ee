"""Every key of a model's weights answers for every program: it is written under its name, or the model is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import pytest

from engine.layouts import LLAMA, NEOX, QWEN, WINDOW
from engine.tiny import tiny
from pretrain.recipe.sections.model import CONSEQUENCES
from pretrain.tools.convert import model_keys
from pretrain.tools.convert.formats.deepspeed_writer import _args
from pretrain.tools.convert.formats.hugging_face_config import config_of as hugging_face_config
from pretrain.tools.convert.formats.hugging_face_families import FAMILIES
from pretrain.tools.convert.formats.megatron_writer import args_for
from pretrain.tools.convert.formats.neox import config_of as neox_config
from pretrain.tools.convert.model_keys import NAMES, Names, Program, not_held
from pretrain.tools.convert.model_weights import FileLayout

EXPERTS = (*LLAMA, "model.num_experts=4", "model.moe_shared_expert_intermediate_size=64")
MODELS = [
    tiny(*overrides).model
    for overrides in (
        *((), NEOX, LLAMA, (*QWEN, "model.num_query_groups=2", *WINDOW), ("model.num_query_groups=2",)),
        EXPERTS,
    )
]


def written(program, model):
    """Return all names that a program's files have for a model."""
    weights = SimpleNamespace(
        model=model, tokenizer=(), vocab_size=300, rows=384, consumed_samples=None, iteration=None, tensors={}
    )
    match program:
        case "megatron":
            return vars(args_for(weights, FileLayout()))
        case "deepspeed":
            return _args(weights, FileLayout())
        case "neox":
            return neox_config(model)
        case "huggingface":
            return {
                name
                for kind, family in FAMILIES.items()
                for name in hugging_face_config(kind, family, model, 300, None, {})
            }


@pytest.mark.parametrize("program", get_args(Program))
def test_a_name_of_the_table_is_written(program):
    found = {name for model in MODELS for name in written(program, model)}
    for key, names in NAMES.items():
        name = getattr(names, program)
        assert not name or found & ({name} if isinstance(name, str) else set(name)), key


def test_a_program_without_a_key_refuses_a_model_that_needs_it():
    model = tiny(*LLAMA, "model.embedding_layernorm=true").model
    for program in get_args(Program):
        assert not_held(program, model)["embedding_layernorm"]
        assert not not_held(program, tiny(*LLAMA).model)["embedding_layernorm"]
    for program, has_none in (("neox", True), ("deepspeed", True), ("megatron", False), ("huggingface", False)):
        assert not_held(program, tiny(*EXPERTS).model).get("num_experts", False) == has_none


def test_a_key_without_a_row_is_an_error(monkeypatch):
    key = next(key for key, consequences in CONSEQUENCES.items() if consequences.is_structure)
    monkeypatch.setattr(model_keys, "NAMES", {name: row for name, row in NAMES.items() if name != key})
    with pytest.raises(TypeError, match=f"^{key}: give each key"):
        model_keys._require_all()
    assert isinstance(NAMES[key], Names)
