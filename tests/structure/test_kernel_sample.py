"""The kernel table in the README is possible for the run beside it.

Which kernel is taken depends on the machine, so each row is compared with everything that is offered or declined here.
"""

from __future__ import annotations

import pytest

from pretrain.model.requests import collectives_request, kernel_requests
from pretrain.plugins.host import manager
from pretrain.plugins.negotiation.choosing import choose
from pretrain.recipe import load_recipe
from structure.documents import arguments_of_pretrain, called, command_lines, text_of
from structure.sources import ROOT

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def proposals():
    """Names and kinds of the kernels that are proposed for the README's miniature of GPT-3, by operation."""
    text = text_of(README)
    (shown,) = [words for words in command_lines(text) if "recipes/gpt3.yml" in words and "--nproc" in words]
    parameters = called(arguments_of_pretrain(shown)).params
    recipe, plugins = load_recipe(ROOT / parameters["recipe"], parameters["overrides"]), manager.load("cpu")
    requests = [collectives_request(recipe, "cpu", "gloo"), *kernel_requests(recipe, "cpu", 8192)]
    return {
        choice.request.operation: {(each.answer.name, each.answer.kind or "-") for each in choice.proposals}
        for choice in choose(plugins, requests, recipe.kernels.chosen(), recipe.kernels.fallback)
    }


@pytest.fixture(scope="module")
def rows():
    """The rows of the README's table, in words."""
    _, _, rest = text_of(README).partition("operation         kernel")
    lines = rest.partition("```")[0].splitlines()[1:]
    return [line.split() for line in lines if not line.startswith(" ")]


def test_every_operation_has_a_row(rows, proposals):
    assert {row[0] for row in rows} == set(proposals)


def test_every_row_names_a_kernel_that_is_there(rows, proposals):
    assert [row for row in rows if (row[1], row[2]) not in proposals[row[0]]] == []
