"""`pretrain migrate`: what it prints, writes, and exits with."""

from __future__ import annotations

from itertools import pairwise

import pytest
from click.testing import CliRunner

from pretrain.errors import MigrateError, RecipeError
from pretrain.recipe import load_recipe
from pretrain.tools.migrate.command import command
from tools.migrate.cell.namespaces import skip_scripts

ARGUMENTS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 10 --lr 1e-3 --bf16 "
    "--data-path data/tokens --vocab-file vocab.json --merge-file merges.txt --tensorboard-dir $LOGS"
)


@pytest.fixture(autouse=True)
def _cells(monkeypatch):
    skip_scripts(monkeypatch)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sh").write_text(f"torchrun --nproc_per_node 2 pretrain_gpt.py {ARGUMENTS}\n")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(command, arguments)


def refused(*arguments):
    error = run(*arguments).exception
    assert isinstance(error, MigrateError), error
    return str(error)


def test_a_script_becomes_a_recipe_that_loads(folder):
    found = run("train.sh", "--output", "recipe.yml")
    assert found.exit_code == 0, found.output
    recipe = load_recipe("recipe.yml")
    assert (recipe.model.num_layers, recipe.precision.dtype, recipe.train.train_iters) == (2, "bf16", 10)
    assert "num_layers: 2 # --num-layers (line 1)" in (folder / "recipe.yml").read_text()
    assert found.stderr.splitlines()[-1] == "pretrain run recipe.yml --nproc 2"
    assert "--tensorboard-dir (train.sh:1): " in found.stderr


@pytest.mark.full
@pytest.mark.usefixtures("folder")
def test_without_an_output_the_recipe_is_printed_alone():
    found = run("train.sh")
    assert found.stdout.startswith("# Written by pretrain migrate from train.sh,")
    assert "Carried over" not in found.stdout


def test_an_unsupported_setting_is_said_and_exits_with_3(folder):
    found = run("train.sh", "--args", "--lr-warmup-init 1e-5", "-o", "recipe.yml")
    assert found.exit_code == 3
    assert "Not supported: this changes (1):" in found.stderr
    assert "# Not supported: --lr-warmup-init (--args): " in (folder / "recipe.yml").read_text()


@pytest.mark.parametrize("arguments", ["--lr-warmup-init 1e-5", pytest.param("--our-own 3", marks=pytest.mark.full)])
def test_strict_writes_nothing_then(folder, arguments):
    found = run("train.sh", "--args", arguments, "-o", "recipe.yml", "--strict")
    assert found.exit_code == 3
    assert not (folder / "recipe.yml").exists()


def test_another_model_is_refused_unless_it_is_accepted(folder):
    """The whole recipe says later what it lacks, and how many parameters the source's program trains."""
    arguments = "--multi-latent-attention --softmax-type learnable --position-embedding-type mrope"
    error = refused("train.sh", "--args", arguments)
    assert error.splitlines()[0] == (
        "--multi-latent-attention (--args): keys and values come from projections of their own, not from latents."
    )
    assert "Give --accept multi_latent_attention,softmax_type,position_embedding_type to write it anyway." in error
    arguments = "--num-experts 8 --qk-layernorm --disable-bias-linear --moe-shared-expert-gate"
    found = run("train.sh", "--args", arguments, "--accept", "moe-shared-expert-gate")
    assert found.exit_code == 3, found.exception
    head = found.stdout.partition("model:")[0]
    assert "# Not supported: --moe-shared-expert-gate (--args): shared experts have no gate" in head
    assert "--accept num_expert: no setting of this name is refused" in refused("train.sh", "--accept", "num_expert")
    assert folder.exists()


@pytest.mark.usefixtures("folder")
def test_the_source_and_the_recipe_train_as_many_parameters():
    assert "Note: The source trains 102,144 parameters, this recipe 102,144, without" in run("train.sh").stderr


@pytest.mark.full
@pytest.mark.usefixtures("folder")
def test_flags_of_mindspeed_llm_are_known():
    flags = "--use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --swap-attention --reuse-fp32-param"
    found = run("train.sh", "--args", f"{flags} --use-mc2 --npu-deterministic --our-own 1 2")
    assert found.exit_code == 3, found.exception
    assert "Taken for MindSpeed-LLM of August 2026" in found.stderr
    assert "deterministic_mode: true # --npu-deterministic" in found.stdout
    assert "# Not known: --our-own 1 2 (--args): it is ignored." in found.stdout
    assert "Not known (1):" in found.stderr


@pytest.mark.full
@pytest.mark.usefixtures("folder")
def test_later_arguments_win_and_the_report_says_so():
    found = run("train.sh", "--args", "--num-layers 4", "-o", "recipe.yml")
    assert load_recipe("recipe.yml").model.num_layers == 4
    assert "--num-layers 4 replaces --num-layers 2 of train.sh:1" in found.stderr


@pytest.mark.full
def test_a_misspelt_flag_is_named_with_its_line(folder):
    with (folder / "train.sh").open("a") as script:
        script.write("\n")
    found = run("train.sh", "--args", "--hiden-size 4")
    assert found.exit_code == 3
    line = "--hiden-size 4 (--args): it is ignored. Did you mean '--hidden-size'?"
    assert f"  - {line}" in found.stderr
    assert f"# Not known: {line}" in found.stdout


@pytest.mark.full
@pytest.mark.usefixtures("folder")
def test_a_value_out_of_range_is_an_error_with_its_line():
    error = refused("train.sh", "--args", "--num-layers 0")
    assert "--args: --num-layers: model.num_layers: 0 must be greater than 0." in error


@pytest.mark.usefixtures("folder")
def test_a_key_that_the_source_leaves_out_can_be_set():
    found = run(
        "--args", "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --train-iters 5 --lr 1"
    )
    assert "train.micro_batch_size: required" in str(found.exception)
    sets = ("train.micro_batch_size=2", "train.global_batch_size=2", "data.path=x", "tokenizer={type: bytes}")
    wishes = [part for key in sets for part in ("--set", key)]
    found = run(
        "--args",
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 8 --train-iters 5 --lr 1",
        *wishes,
    )
    assert found.exit_code == 0, found.exception
    assert "micro_batch_size: 2 # --set" in found.stdout


@pytest.mark.full
def test_an_existing_file_is_kept(folder):
    (folder / "recipe.yml").write_text("mine")
    assert "recipe.yml exists" in refused("train.sh", "-o", "recipe.yml")
    assert (folder / "recipe.yml").read_text() == "mine"
    assert run("train.sh", "-o", "recipe.yml", "--force").exit_code == 0


def test_values_of_the_environment_are_asked_for_all_at_once(folder):
    (folder / "train.sh").write_text(f"python pretrain_gpt.py {ARGUMENTS} --save $OUT --load $IN --seed $1\n")
    error = refused("train.sh")
    assert error.splitlines()[-1].endswith("Give --define OUT=VALUE --define IN=VALUE --define 1=VALUE")


def test_a_command_is_run_for_real_after_asking(folder):
    (folder / "train.sh").write_text(f"torchrun pretrain_gpt.py {ARGUMENTS}\n".replace("$LOGS", "logs"))
    assert "the command was not run" in refused("--capture", "--", "bash", "train.sh")
    found = run("--capture", "--yes", "--", "bash", "train.sh")
    assert found.exit_code == 0, found.exception
    assert "num_layers: 2 # --num-layers" in found.stdout
    assert "This command runs for real" in found.stderr
    assert "--capture needs a command" in refused("--capture", "--args", "--bf16")
    assert "--yes is for --capture alone" in refused("train.sh", "--yes")
    assert "--define does not work with --capture" in refused(
        "--capture", "--yes", "-D", "A=1", "--", "bash", "train.sh"
    )


def test_preprocessing_alone_becomes_a_command(folder):
    (folder / "data.sh").write_text("python tools/preprocess_data.py --input a.json --output-prefix a --append-eod\n")
    assert run("data.sh").stdout == "pretrain data build --input a.json --output-prefix a --append-eod\n"


def test_versions_are_listed():
    assert "megatron-lm-2023.07" in run("--from", "?").stdout


@pytest.mark.usefixtures("folder")
def test_a_source_is_needed():
    assert run().exit_code == 2
    assert "give it as NAME=VALUE" in refused("train.sh", "--define", "OUT")


@pytest.mark.full
def test_a_definition_reaches_the_arguments_and_one_that_nothing_reads_is_an_error(folder):
    (folder / "train.sh").write_text(f"python pretrain_gpt.py {ARGUMENTS} --save $OUT\n")
    found = run("train.sh", "--args", "--load $IN", "-D", "OUT=a", "-D", "IN=b")
    assert found.exit_code == 0, found.exception
    assert "load: b" in found.stdout
    assert "--define OTU: no source reads this variable. Did you mean 'OUT'?" in refused("train.sh", "-D", "OTU=a")


@pytest.mark.full
def test_a_log_after_a_script_wins(folder):
    words = ARGUMENTS.split()
    values = {word[2:].replace("-", "_"): value for word, value in pairwise(words) if word[:2] == "--"}
    lines = [f"  {name} ....... {value}" for name, value in (values | {"lr": "0.5", "bf16": "True"}).items()]
    text = [
        "------------------------ arguments ------------------------",
        *lines,
        f"{'-' * 20} end of arguments {'-' * 21}",
    ]
    (folder / "train.log").write_text("\n".join(text))
    found = run("train.sh", "train.log", "--from", "megatron-lm-2023.07")
    assert "lr: 0.5 # lr (line " in found.stdout, found.exception
    assert "lr 0.5 replaces --lr 0.001 of train.sh:1" in found.stderr


@pytest.mark.full
def test_a_deepspeed_file_that_the_program_would_not_read_is_an_error(folder):
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert "ds.json: the program reads no DeepSpeed file without --deepspeed." in refused("train.sh", "ds.json")
    found = run("train.sh", "ds.json", "--as-meant")
    assert "stage: 2 # zero_optimization.stage (ds.json:1)" in found.stdout, found.exception


def test_the_number_of_devices_is_asked_for_where_it_counts_and_wins_over_the_launcher(folder):
    found = run("train.sh", "--devices", "4")
    assert "--devices 4 is used, not the 2 processes of train.sh:1" in found.stderr
    assert found.stderr.splitlines()[-1] == "pretrain run recipe.yml"
    (folder / "train.sh").write_text(f"python pretrain_gpt.py {ARGUMENTS.replace('--global-batch-size 4', '')}\n")
    assert "Give --devices N" in refused("train.sh")
    assert "global_batch_size: 8 # " in run("train.sh", "--devices", "4").stdout


@pytest.mark.full
def test_a_set_key_is_not_worked_out_and_its_flag_is_said(folder):
    (folder / "train.sh").write_text(f"python pretrain_gpt.py {ARGUMENTS.replace('--global-batch-size 4', '')}\n")
    found = run("train.sh", "--set", "train.global_batch_size=6", "--set", "model.num_layers=3")
    assert "num_layers: 3 # --set" in found.stdout
    assert "--num-layers (train.sh:1): " in found.stderr.partition("No effect here")[2]
    with pytest.raises(RecipeError, match=r"an override is section\.key=value"):
        raise run("train.sh", "--set", "bad", "--devices", "2").exception


@pytest.mark.full
def test_preprocessing_that_is_not_supported_exits_with_3_and_has_no_recipe(folder):
    (folder / "data.sh").write_text("python preprocess_data.py --input a --output-prefix b --json-keys text title\n")
    found = run("data.sh")
    assert found.exit_code == 3
    assert found.stdout == "pretrain data build --input a --output-prefix b --json-key text\n"
    assert "only builds token files" in refused("data.sh", "-o", "recipe.yml")


def test_the_way_back_prints_arguments_and_says_what_has_no_flag(folder):
    run("train.sh", "-o", "recipe.yml", "--set", "checkpoint.save=out")
    found = run("--to", "megatron", "recipe.yml")
    assert found.exit_code == 0, found.stderr
    assert "--num-layers 2 \\" in found.stdout
    found = run("--to", "megatron", "recipe.yml", "--set", "data.index=native", "--strict", "-o", "arguments")
    assert found.exit_code == 3
    assert "No flag: data.index=native" in found.stderr
    assert not (folder / "arguments").exists()
    assert "Leave out --args, --devices: --to takes" in refused(
        "--to", "megatron", "r.yml", "--args", "x", "--devices", "2"
    )
