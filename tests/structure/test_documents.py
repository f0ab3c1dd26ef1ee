"""Everything that the documents show exists: linked files and headings, commands, options, recipes, make targets."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from pretrain.recipe import lay_out, load_recipe
from structure.documents import (
    anchors,
    arguments_of_pretrain,
    called,
    command_lines,
    inline_commands,
    links,
    pages,
    ranks_of,
    shell_lines,
    text_of,
    unknown_of,
)
from structure.sources import ROOT

NOT_LOOKED_AT = {
    "pip": "it installs: tests/packaging and the tests of the example distributions do",
    "cd": "what follows is a module of a backend's tests",
    "export": "an address of the reader's own",
    "trap": "a part of a batch script", "if": "the same", "exit": "the same",
    "kill": "the reader harms a rank of his own",
    "source": "the environment", "mkdir": "a file of the reader's own", "find": "the same",
    "python": "tests/docs/test_first_hour.py runs it, and chaos/own_tests the module chaos",
    "tensorboard": "tests/docs/test_first_hour.py runs it",
    "docker": "an image whose Dockerfile tests/examples/test_containers.py reads", "apptainer": "the same",
    "nsys": "a program of CUDA; backends/cuda/tests/test_profiler.py has what it waits for",
    ".venv/bin/python": "pytest, and scripts whose tests are in tests/docs",
}  # fmt: skip
"""First word of a line in a shell block -> why no test here looks at the line."""

SHOWN = [(page, words) for page in pages() for words in command_lines(text_of(page))]
PRETRAIN = [(page, arguments) for page, words in SHOWN if (arguments := arguments_of_pretrain(words)) is not None]
RECIPES = [(page, words) for page, words in SHOWN if any(word.startswith("recipes/") for word in words)]
MAKE = [(page, words[1:]) for page, words in SHOWN if words[0] == "make"]


def missing_links(page):
    """Return the links of a page that lead nowhere."""
    missing = []
    for target in links(text_of(page)):
        name, _, anchor = target.partition("#")
        file = (ROOT / page).parent / name if name else ROOT / page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            missing.append(target)
    return missing


def test_links_lead_somewhere():
    assert {str(page): missing for page in pages() if (missing := missing_links(page))} == {}


def test_commands_that_are_shown_exist(monkeypatch):
    monkeypatch.chdir(ROOT)
    for page, arguments in PRETRAIN:
        assert called(arguments).command.callback is not None, (page, arguments)


def test_commands_in_sentences_and_tables_have_the_options_that_they_show():
    shown = [(str(page), words) for page in pages() for words in inline_commands(text_of(page))]
    assert [(page, words) for page, words in shown if unknown_of(words)] == []
    assert len(shown) > 100


def test_options_in_sentences_that_do_not_exist_are_found():
    text = "`pretrain plan --divice X`, `pretrain plam`, `pretrain RECIPE --nproc 2`, `pretrain data inspect --repair`"
    assert [unknown_of(words) for words in inline_commands(text)] == [["--divice"], ["plam"], [], []]


def test_every_line_of_a_shell_block_is_looked_at():
    unseen = {}
    for page in pages():
        for words in shell_lines(text_of(page)):
            program = words[0]
            if program in NOT_LOOKED_AT or list(command_lines(f"```\n{shlex.join(words)}\n```\n")):
                continue
            files = [word for word in words[:2] if "/" in word]
            if not files or not all((ROOT / file).exists() for file in files):
                unseen[str(page)] = words
    assert unseen == {}


def test_recipes_that_are_shown_are_valid_with_their_overrides_and_ranks(monkeypatch, site):
    for example in ("example-optimizer", "example-logger"):  # which pages have the reader install
        site.project(ROOT / "docs" / example)
    monkeypatch.chdir(ROOT)
    for page, words in RECIPES:
        shown = called(arguments_of_pretrain(words)).params
        recipe = load_recipe(shown["recipe"], shown["overrides"])
        ranks = ranks_of(words) or (shown.get("nproc") or recipe.model_parallel_size) * (shown.get("nnodes") or 1)
        assert lay_out(recipe, ranks).world_size == ranks, (page, words)


def test_make_targets_that_are_shown_exist():
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert [(str(page), shown) for page, shown in MAKE if not set(shown) <= set(targets)] == []


def test_the_first_page_shows_the_two_commands():
    shown = [words for page, words in SHOWN if str(page) == "README.md"]
    assert ["make", "quickstart"] in shown
    assert ["make", "test"] in shown


def test_commands_that_do_not_exist_are_found(monkeypatch):
    monkeypatch.chdir(ROOT)
    wrong = "pretrain recipes/gpt3.yml --bakend cpu", "pretrain trian recipes/gpt3.yml", "pretrain explain"
    for words in command_lines("```\n" + "\n".join(wrong) + "\n```\n"):
        with pytest.raises(click.ClickException):
            called(arguments_of_pretrain(words))


def test_commands_are_read_as_a_shell_reads_them():
    block = "$ no\nmake test  # says why\ntorchrun -m pretrain.cli.main a.yml \\\n  --set b=c"
    text = f"pretrain not here\n```sh\n{block}\n```\n"
    assert list(command_lines(text)) == [
        ["make", "test"],
        ["torchrun", "-m", "pretrain.cli.main", "a.yml", "--set", "b=c"],
    ]


def test_ranks_are_counted():
    assert ranks_of(["pretrain", "a.yml", "--nproc", "2"]) is None
    assert ranks_of(["torchrun", "--nproc-per-node", "2", "-m", "pretrain.cli.main", "a.yml"]) == 2
    assert ranks_of(["srun", "--nodes", "3", "--ntasks-per-node", "2", "pretrain", "a.yml"]) == 6


def test_links_in_code_are_none():
    assert links("[a](b.md) [c](https://example.org/d) `x`\n```\n[f](g.md)\n```\n[h](#i)") == ["b.md", "#i"]


def test_anchors_are_those_of_github():
    assert anchors("# A `b-c` (d)\n## Own data, own tokenizer\n```\n# no\n```\n") == {
        "a-b-c-d",
        "own-data-own-tokenizer",
    }
