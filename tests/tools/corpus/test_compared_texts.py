"""The texts of a chunk that are compared with the reference: several, spread over it, the rare ones first."""

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.data.tokenizers.tokenizer import ByteTokenizer
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import fast_tokenizer as fast
from pretrain.tools.corpus import reference_comparison
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.reference_comparison import parts_of
from tools.corpus.reference_comparisons import samples_by


def parts(texts):
    return parts_of(("<x>", "<y>"), texts)


LONG = st.text("ab<x>\u00e9", max_size=9).flatmap(lambda text: st.sampled_from([text, text * 300]))


@given(texts=st.lists(LONG, max_size=20))
def test_each_is_a_part_of_its_text_with_its_ids(texts):
    found = parts(texts)
    assert bool(found) == any(texts)
    assert len(found) <= 8
    for text, number, whole, _, rare in found:
        assert 0 < len(text) <= 1024
        assert text in texts[number]
        assert whole == (len(texts[number]) <= 1024)
        assert rare == (not text.isascii() or "<x>" in text) or len(text) == 1024
    assert [part.rare for part in found] == sorted((part.rare for part in found), reverse=True)
    assert [(text, ids, number) for text, ids, number in samples_by(ByteTokenizer(), texts)] == [
        (part.text, list(part.text.encode()), part.number) for part in parts_of((), texts)
    ]


def test_they_are_spread_over_the_chunk():
    assert sorted(part.number for part in parts(["word"] * 80)) == list(range(0, 80, 10))
    assert sorted(part.number for part in parts(["word"] * 80)[:4]) == [0, 10, 30, 60]


def test_a_long_text_is_sampled_at_several_places():
    text = " ".join(map(str, range(20_000)))
    places = sorted(text.index(part.text) for part in parts([text]))
    assert len(places) == 8
    assert places[0] == 0
    assert all(after - before > 10_000 for before, after in pairwise(places))


@pytest.mark.parametrize("rare", ["caf\u00e9", "a<y>b"])
def test_rare_texts_are_preferred_and_come_first(rare):
    texts = ["plain"] * 80
    texts[32] = rare
    first, *others = parts(texts)
    assert (first.text, first.number, first.rare) == (rare, 32, True)
    assert len(others) == 7
    assert not any(part.rare for part in others)


def test_rare_characters_of_a_long_text_are_in_the_sample():
    text = "a" * 30_000 + "\u00e9" + "a" * 30_000
    assert "\u00e9" in parts([text])[0].text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    file = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    train_tokenizer(DOCUMENTS, 300, file)
    return TokenizerSection(type="huggingface", file=str(file))


@pytest.mark.usefixtures("small_as_large")
def test_ids_that_are_wrong_outside_ascii_stop_the_build(tmp_path, trained, monkeypatch):
    """One text of a chunk, its first, would not show them."""

    def wrong(self, texts, right=fast.FastTokenizer.encode_batch):
        return [ids if text.isascii() else ids[::-1] for text, ids in zip(texts, right(self, texts), strict=True)]

    monkeypatch.setattr(fast.FastTokenizer, "encode_batch", wrong)
    documents = DOCUMENTS[:100]
    documents[51] = "na\u00efve"
    with pytest.raises(DataError, match="gigatoken and the tokenizers library give different tokens"):
        build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], tmp_path / "p", trained)


def test_ids_that_are_wrong_in_long_texts_alone_stop_the_build(tmp_path, trained, monkeypatch):
    def wrong(self, texts, right=fast.FastTokenizer.encode_batch):
        return [ids if len(text) <= 1024 else ids[::-1] for text, ids in zip(texts, right(self, texts), strict=True)]

    monkeypatch.setattr(fast.FastTokenizer, "encode_batch", wrong)
    corpus = write_jsonl(tmp_path / "c.jsonl", [" ".join(DOCUMENTS)] * 4)
    with pytest.raises(DataError, match="gigatoken and the tokenizers library give different tokens"):
        build_tokens([corpus], tmp_path / "p", trained)


WORDS = ["na\u00efve", "a", "the", "1234", " ", "\n\n", "...", "don't", "\u4e2d\u6587", "<x> ", "e\u0301", "_", "\t"]


@given(words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=60), repeated=st.integers(20, 150))
def test_correct_ids_pass_for_long_texts_that_are_cut_anywhere(trained, words, repeated):
    tokenizer = fast.huggingface(Path(trained.file))
    texts = [" ".join(words) * repeated]
    for text, ids, _ in samples_by(tokenizer, texts):
        assert ids == tokenizer.encode(text)


@pytest.mark.usefixtures("small_as_large")
def test_the_number_of_compared_texts_is_reported(tmp_path, trained):
    built = build_tokens([write_jsonl(tmp_path / "c.jsonl", ["word", ""] * 80)], tmp_path / "p", trained)
    assert (built.counts.compared, built.counts.texts) == (8, 80)
    built = build_tokens([write_jsonl(tmp_path / "d.jsonl", ["word " * 9000])], tmp_path / "q", trained)
    assert (built.counts.compared, built.counts.texts) == (1, 1)


def test_it_is_bounded(tmp_path, trained, monkeypatch):
    """64 Ki characters and a thousandth of the text; the reference is slow."""
    compared = []
    monkeypatch.setattr(reference_comparison, "_LONGEST", 1 << 15)
    corpus = write_jsonl(tmp_path / "c.jsonl", ["word " * 100_000])
    monkeypatch.setattr(
        "pretrain.tools.corpus.reference_comparison.ReferenceComparison._check", lambda _, __, s: compared.append(s)
    )
    build_tokens([corpus], tmp_path / "p", trained)
    assert len(compared) == 3
