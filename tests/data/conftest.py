"""Fixtures of the data tests."""

import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.recipe import make_recipe
from pretrain.recipe.sections.data import TokenizerSection
from recipe.smallest import SMALLEST


@pytest.fixture(scope="session")
def bridged():
    """megatron.core may be imported, on the CPU."""
    from pretrain.bridge import megatron
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())


@pytest.fixture
def small_as_large(monkeypatch):
    """Small corpora are encoded as large ones are."""
    monkeypatch.setattr("pretrain.tools.corpus.build._SMALL", -1)


@pytest.fixture
def bytes_section():
    return TokenizerSection(type="bytes")


@pytest.fixture
def corpus(tmp_path):
    """A JSONL file of a few hundred short documents."""
    return write_jsonl(tmp_path / "corpus.jsonl", DOCUMENTS)


@pytest.fixture
def token_files(tmp_path, corpus, bytes_section):
    """Token files of `corpus`, one token a byte; returns the prefix."""
    from pretrain.tools.corpus.build import build_tokens

    prefix = tmp_path / "tokens" / "corpus"
    build_tokens([corpus], prefix, bytes_section, append_eod=True)
    return prefix


@pytest.fixture
def small_recipe(token_files):
    """Return a recipe over `token_files`, changed by "section.key=value"."""

    def make(*overrides):
        parts = {
            "data": {"path": str(token_files), "num_workers": 0, "split": "90,8,2"},
            "evaluation": {"interval": 50, "iters": 1},
        }
        return make_recipe(SMALLEST | parts, overrides)

    return make
