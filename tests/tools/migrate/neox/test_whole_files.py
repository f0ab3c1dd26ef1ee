"""Files of GPT-NeoX as users write them: what becomes of their settings in a recipe and in its report."""

from __future__ import annotations

import pytest
import yaml

from pretrain.errors import MigrateError
from pretrain.tools.migrate.migration import migrate
from pretrain.tools.migrate.setting import MigrateOptions
from pretrain.tools.migrate.sources.recognition import read_sources

SMALL = {
    "num_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "train_iters": 100,
    "data_path": "tokens",
    "vocab_file": "v.json",
    "merge_file": "m.txt",
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 0.001}},
}


@pytest.fixture
def recipe_of(tmp_path, monkeypatch):
    """Return a function from settings to a migration; its keyword `of` is --from."""
    monkeypatch.chdir(tmp_path)

    def one(settings, *, of="", devices=8, accepted=()):
        text = yaml.safe_dump({name: value for name, value in (SMALL | settings).items() if value is not None})
        (tmp_path / "x.yml").write_text(text)
        return migrate(
            read_sources(["x.yml"], {}), MigrateOptions(program=of, devices=devices, accepted=frozenset(accepted))
        )

    return one


def lines(migration, written):
    return [f"{outcome.fate}: {outcome.text}" for outcome in migration.outcomes if outcome.written == written]


@pytest.mark.parametrize(
    ("extra", "section", "key", "value"),
    [
        ({"gradient_clipping": 0.5}, "optimizer", "clip_grad", 0.5),
        ({"train_batch_size": 512}, "train", "global_batch_size", 512),
        ({"bf16": {"enabled": True}}, "precision", "dtype", "bf16"),
    ],
)
def test_extra_keys_of_deepspeed_are_carried_over_under_their_written_names(recipe_of, extra, section, key, value):
    steps = {"gradient_accumulation_steps": 32} if key == "global_batch_size" else {}
    found = recipe_of({"deepspeed_extra_args": extra, **steps})
    assert getattr(getattr(found.recipe, section), key) == value
    written = next(one for one in (outcome.written for outcome in found.outcomes) if one.startswith("deepspeed_extra"))
    assert f"carried over: {section}.{key}" in lines(found, written)


def test_a_key_in_both_places_is_refused_with_both_lines(recipe_of):
    both = {"deepspeed_extra_args": {"gradient_clipping": 0.5}, "gradient_clipping": 1.0}
    with pytest.raises(MigrateError) as error:
        recipe_of(both)
    assert str(error.value).startswith("x.yml:3: deepspeed_extra_args.gradient_clipping and x.yml:4: gradient_clipping")


@pytest.mark.parametrize("setting", [{"expansion_factor": 1e308}, {"lr_decay_fraction": 1e308}])
def test_numbers_out_of_range_are_errors_with_their_lines(recipe_of, setting):
    with pytest.raises(MigrateError, match=rf"^x.yml:\d+: {next(iter(setting))}: 1e\+308"):
        recipe_of(setting)


def test_a_width_out_of_range_is_an_error_with_its_line(recipe_of):
    with pytest.raises(MigrateError, match=r"^x.yml:\d+: hidden_size: a number of 401 digits is out of range"):
        recipe_of({"hidden_size": 10**400, "pos_emb": "rotary"})


def test_three_batch_sizes_that_contradict_each_other_by_a_default_are_refused(recipe_of):
    with pytest.raises(MigrateError, match=r"^x.yml:\d+: train_batch_size: 64 is not 2 x 1 steps of accumulation x 8"):
        recipe_of({"train_batch_size": 64})


@pytest.mark.parametrize(("version", "dropout", "decay"), [("2023.10", 0.1, 0.01), ("2024.02", 0.0, 0.1)])
def test_defaults_are_those_of_the_version(recipe_of, version, dropout, decay):
    found = recipe_of({}, of=f"gpt-neox-{version}").recipe
    assert (found.model.hidden_dropout, found.model.attention_dropout) == (dropout, dropout)
    assert found.optimizer.weight_decay == decay


def test_an_older_name_chooses_an_older_version(recipe_of):
    llama = {"mlp_type": "llama", "activation": "silu", "use_bias_in_attn_linear": False, "intermediate_size": 96}
    found = recipe_of(llama)
    assert found.taken_for.startswith("GPT-NeoX of February to August 2024, the newest version that takes mlp_type")
    model = found.recipe.model
    assert (model.activation, model.ffn_hidden_size, model.add_bias_linear) == ("swiglu", 96, False)
    assert lines(found, "intermediate_size") == ["carried over: model.ffn_hidden_size"]


def test_a_group_of_layers_that_does_not_fit_is_in_the_report(recipe_of):
    found = recipe_of({"checkpoint_activations": True, "checkpoint_num_layers": 3})
    ((line),) = lines(found, "checkpoint_num_layers")
    assert line.startswith("not supported: 3 does not divide the layers of every stage; groups have 1")


def test_a_type_of_fp16_is_in_the_report(recipe_of):
    fp16 = {"fp16": {"enabled": True, "type": "bfloat16"}}
    newest, first = recipe_of(fp16), recipe_of(fp16, of="gpt-neox-2.0")
    assert (newest.recipe.precision.dtype, first.recipe.precision.dtype) == ("fp16", "bf16")
    assert lines(newest, "fp16.type")[0].startswith(
        "not supported: GPT-NeoX of September 2024 to May 2026 does not read it"
    )


def test_a_run_starts_from_its_own_folder(recipe_of):
    found = recipe_of({"save": "ckpt", "load": "ckpt"}).recipe.checkpoint
    assert (found.save, found.load) == ("ckpt", "ckpt")


def test_an_unknown_name_is_a_line_of_the_report_and_of_the_recipe(recipe_of):
    found = recipe_of({"num-layer": 3, "our_own": "x"})
    assert lines(found, "num-layer 3") == ["not known: it is ignored. Did you mean 'num_layers'?"]
    assert lines(found, "our_own x") == ["not known: it is ignored"]
    assert "# Not known: our_own x (x.yml:" in found.text
    assert not found.is_complete


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"moe_num_experts": 8}, "moe_num_experts"),
        ({"use_qk_layernorm": True}, "use_qk_layernorm"),
        ({"sliding_window_width": 128}, "sliding_window_width"),
        ({"attention_config": [[["mamba"], 8]]}, "attention_config"),
        ({"pos_emb": "alibi"}, "pos_emb"),
    ],
)
def test_another_model_has_to_be_accepted(recipe_of, settings, name):
    with pytest.raises(MigrateError, match=rf"^{name} \(x.yml:\d+\): .*\n.* Give --accept {name} to write it"):
        recipe_of(settings)
    found = recipe_of(settings, accepted=[name])
    assert lines(found, name)[0].startswith("not supported: ")
    assert f"# Not supported: {name} (x.yml:" in found.text


def test_an_object_of_another_model_is_accepted_by_its_name(recipe_of):
    settings = {"sparse_attention": {"mode": "fixed", "block": 16}}
    with pytest.raises(MigrateError, match=r"Give --accept sparse_attention to write it"):
        recipe_of(settings)
    found = recipe_of(settings, accepted=["sparse_attention"])
    assert lines(found, "sparse_attention.mode")[0].startswith("not supported: ")
