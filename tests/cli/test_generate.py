"""`pretrain generate`: text of a trained model."""

from __future__ import annotations

import shutil

import pytest
import torch

from cli.trained import call, contents, settings, write_recipe
from pretrain.checkpoint import storage
from pretrain.cli.generate import NOTE
from pretrain.engine import groups
from pretrain.engine.build import build_engine
from pretrain.plugins.host.manager import load
from pretrain.recipe import load_recipe

PROMPT, EOD = "ab de", 256
pytestmark = [pytest.mark.usefixtures("forked_python"), pytest.mark.xdist_group("generate")]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run whose last checkpoint writes more than one letter."""
    recipe = write_recipe(tmp_path_factory.mktemp("trained"))
    assert call(recipe, "--run-dir", recipe.parent / "run", *settings("train.train_iters=12")) == 0
    return recipe.parent / "run"


@pytest.fixture
def generate(capfd):
    """Generate 8 tokens; return what is printed."""

    def run(*arguments):
        capfd.readouterr()
        assert call("generate", *arguments, "--prompt", PROMPT, "--max-new-tokens", 8) == 0
        return capfd.readouterr().out

    return run


def most_probable(run_dir, tokens, count):
    """Continue tokens with the training's engine, the largest logit each time."""
    plugins = load("cpu")
    with groups.joined(plugins.backend, 0, 1, timeout_minutes=1):
        engine, _ = build_engine(load_recipe(run_dir / "recipe.yml"), plugins, 257, torch.device("cpu"), notify=print)
        storage.load(engine, run_dir / "checkpoints" / "iter_0000012", weights_only=False)
        for _ in range(count):
            tokens = [*tokens, max(range(257), key=engine.next_token_logits(tokens).tolist().__getitem__)]
    return tokens


def test_temperature_0_is_the_most_probable_token_each_time(generate, run_dir, capfd):
    tokens = most_probable(run_dir, list(PROMPT.encode()), 8)
    assert EOD not in tokens
    before = contents(run_dir)
    expected = f"{bytes(tokens).decode(errors='replace')}\n"
    assert generate(run_dir, "--temperature", 0) == expected
    assert generate(run_dir / "checkpoints", "--temperature", 0, "--seed", 5) == expected
    assert contents(run_dir) == before


@pytest.mark.full
def test_a_seed_gives_one_text_and_another_seed_another(generate, run_dir):
    first = generate(run_dir, "--seed", 5)
    assert first.startswith(PROMPT)
    assert first == generate(run_dir / "checkpoints" / "iter_0000012", "--seed", 5)
    assert first != generate(run_dir, "--seed", 6)
    assert generate(run_dir, "--seed", 5, "--top-p", 1e-9) == generate(run_dir, "--temperature", 0)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.full), 2])
def test_layouts_draw_the_same(stages, generate, run_dir):
    layout = f"parallel.{'pipeline' if stages == 2 else 'tensor'}_model_parallel_size=2"
    assert generate(run_dir, *settings(layout)) == generate(run_dir)


@pytest.mark.full
def test_a_checkpoint_outside_of_a_run_needs_its_recipe(generate, run_dir, tmp_path, capfd):
    shutil.copytree(run_dir / "checkpoints", tmp_path / "copy")
    (tmp_path / "copy" / "owner.json").unlink()
    assert call("generate", tmp_path / "copy", "--prompt", PROMPT) == 2
    assert capfd.readouterr().err == (
        f"{tmp_path}/copy: there is no recipe.yml beside it.\n"
        "Name a run directory, its checkpoints or one of them; a checkpoint outside of a run needs --recipe FILE.\n"
    )
    assert generate(tmp_path / "copy", "--recipe", run_dir / "recipe.yml") == generate(run_dir)


@pytest.mark.full
def test_checkpoints_elsewhere_know_their_run(generate, run_dir, tmp_path):
    recipe, saved = run_dir.parent / "tiny.yml", tmp_path / "saved"
    assert call(recipe, "--run-dir", tmp_path / "run", *settings(f"checkpoint.save={saved}")) == 0
    text = generate(tmp_path / "run", "--temperature", 0)
    assert generate(saved, "--temperature", 0) == generate(saved / "iter_0000003", "--temperature", 0) == text


def test_it_says_that_it_is_no_server_and_how_much_the_model_sees(run_dir, capfd):
    assert call("generate", run_dir, "--prompt", "a" * 40, "--max-new-tokens", 1) == 0
    assert capfd.readouterr().err.splitlines() == [
        NOTE,
        "The model sees the last 32 tokens of 40.",
        f"checkpoint: {run_dir}/checkpoints/iter_0000012 (pretrain)",
    ]
    call("generate", "--help")
    assert "For an inference server" in " ".join(capfd.readouterr().out.split())


def test_mistakes_are_errors_of_two_lines(run_dir, tmp_path, capfd):
    mistakes = {
        (run_dir, "text"): 'write --prompt "TEXT".',
        (run_dir, "--prompt", ""): "'--prompt': the prompt is empty.",
        (run_dir, "--prompt", "a" * 49): "'--prompt': 49 tokens; give 1 to 48 (model.max_position_embeddings).",
        (run_dir, "--prompt", "a", "--temperature", -0.5): "'--temperature': -0.5 is not 0",
        (run_dir, "--prompt", "a", "--temperature", "nan"): "'--temperature': nan is not 0",
        (run_dir, "--prompt", "a", "--top-p", 0): "'--top-p': 0 is not allowed: give more than 0, at most 1",
        (run_dir, "--prompt", "a", "--top-p", 1.1): "'--top-p': 1.1 is not allowed: give more than 0, at most 1",
        (run_dir, "--prompt", "a", "--max-new-tokens", 0): "'--max-new-tokens': 0 is not in the range",
        (tmp_path / "absent", "--prompt", "a"): "there is no such folder.",
        (tmp_path, "--prompt", "a"): "there is no recipe.yml beside it.",
    }
    for arguments, message in mistakes.items():
        assert call("generate", *arguments) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert message in err
        assert len(err.splitlines()) == 2, err
    assert call("generate", tmp_path, "--prompt", "a", "--recipe", run_dir / "recipe.yml") == 2
    assert "has no checkpoint of a known format" in capfd.readouterr().err
