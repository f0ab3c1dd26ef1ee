"""User errors: two or three lines, exit code 2, no partial files."""

import shutil
from importlib.metadata import version

import pytest
import torch

from e2e.conftest import pretrain, tiny

pytestmark = pytest.mark.usefixtures("forked_python")


def mistake(*arguments):
    """Return the lines of the message."""
    printed = pretrain(*arguments, code=2)
    assert "Traceback" not in printed
    lines = [line for line in printed.splitlines() if line.strip()]
    assert 1 <= len(lines) <= 4, printed
    return printed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.num_layer=2", ["num_layer", "Did you mean", "num_layers"]),
        pytest.param("train.train_iters=many", ["train.train_iters", "many"], marks=pytest.mark.full),
        pytest.param(
            "parallel.tensor_model_parallel_size=3", ["tensor_model_parallel_size", "3"], marks=pytest.mark.full
        ),
    ],
)
def test_a_recipe_that_cannot_be_run(setting, words, text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    printed = mistake(*tiny(text_tokens, run_dir, setting))
    assert all(word in printed for word in words)
    assert not run_dir.exists()


def test_ranks_that_do_not_fit_the_layout(text_tokens, tmp_path):
    printed = mistake(*tiny(text_tokens, tmp_path / "run", "parallel.tensor_model_parallel_size=2"), "--nproc", "3")
    assert "3 ranks" in printed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("profile={start: 2, steps: 1, ranks: [3]}", "there is no rank 3"),
        pytest.param("evaluation.tasks=[lambadda]", "'lambadda' is no task", marks=pytest.mark.full),
    ],
)
def test_a_mistake_that_the_ranks_find_leaves_the_directory_to_the_corrected_command(
    setting, words, text_tokens, tmp_path
):
    if "tasks" in setting:
        pytest.importorskip("lm_eval")
    assert words in mistake(*tiny(text_tokens, tmp_path / "run", setting))
    assert not (tmp_path / "run").exists()


def test_missing_data_names_the_file_and_the_command(tmp_path):
    printed = mistake(*tiny(tmp_path / "absent", tmp_path / "run"))
    assert "absent" in printed
    assert "data build" in printed


def test_truncated_data_names_both_sizes(text_tokens, tmp_path):
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{text_tokens}{suffix}", tmp_path / f"cut{suffix}")
    with (tmp_path / "cut.bin").open("r+b") as file:
        file.truncate(1000)
    printed = mistake(*tiny(tmp_path / "cut", tmp_path / "run"))
    assert "cut.bin" in printed
    assert "1,000" in printed or "1000" in printed


def test_a_tokenizer_that_does_not_match_the_data(text_tokens, shared_data, tmp_path):
    vocab, merges = shared_data / "gpt2-vocab.json", shared_data / "gpt2-merges.txt"
    tokenizer = f"tokenizer={{type: gpt2, vocab_file: {vocab}, merge_file: {merges}}}"
    printed = mistake(*tiny(text_tokens, tmp_path / "run", tokenizer))
    assert "tokenizer" in printed


def test_an_unknown_backend_lists_those_that_are_installed():
    printed = mistake("--backend", "cdua", "recipes/gpt3.yml")
    assert "cdua" in printed
    assert "cpu" in printed


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch is built with CUDA")
def test_the_cuda_backend_says_in_two_lines_that_torch_is_built_without_cuda_and_what_to_do():
    missing, remedy = mistake("--backend", "cuda", "recipes/gpt3.yml").splitlines()
    assert missing == (
        f"backend 'cuda' (pretrain-cuda {version('pretrain-cuda')}) has no usable device: "
        f"torch {torch.__version__} is built without CUDA"
    )
    assert remedy == "Install a build with CUDA: pytorch.org/get-started."


@pytest.mark.full
def test_a_checkpoint_of_another_model(text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    pretrain(*tiny(text_tokens, run_dir, "train.exit_interval=2"))
    printed = mistake(*tiny(text_tokens, run_dir, "model.hidden_size=64"), "--resume")
    assert "model.hidden_size" in printed
    assert "32" in printed


def test_a_run_directory_that_holds_a_run_is_not_overwritten(text_tokens, tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "recipe.yml").write_text("model: {}\n")
    printed = mistake(*tiny(text_tokens, run_dir))
    assert "--resume" in printed
