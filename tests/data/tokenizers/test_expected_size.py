"""The size of a tokenizer whose files need not exist yet."""

from __future__ import annotations

from pretrain.data.tokenizers.expected_size import GPT2_VOCAB_SIZE, expected_vocab_size
from pretrain.recipe.sections.data import TokenizerSection


def test_a_tokenizer_that_is_there_is_counted():
    assert expected_vocab_size(TokenizerSection(type="bytes")) == (257, "")


def test_absent_files_are_named_and_gpt_2_s_size_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    section = TokenizerSection(type="gpt2", vocab_file="vocab.json", merge_file="merges.txt")
    note = "tokenizer: merges.txt not found; counting with 50257 entries"
    assert expected_vocab_size(section) == (GPT2_VOCAB_SIZE, note)


def test_the_size_of_a_tokenizer_that_is_trained_first_is_the_recipe_s():
    section = TokenizerSection(type="huggingface", file="absent.json", vocab_size=5000)
    assert expected_vocab_size(section) == (5000, "tokenizer: absent.json not found; counting with 5000 entries")
