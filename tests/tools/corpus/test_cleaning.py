"""Cleaning while building: characters are repaired, short documents and duplicates are left out."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.example_corpus import write_jsonl
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.token_files.writing import Encoded
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.documents import Cleaning, SeenDocuments, digests_of, select_documents


@pytest.fixture
def cleaned(tmp_path, bytes_section):
    """Build documents; returns what was built and the text that is in the files."""

    def build(documents, **cleaning):
        corpus = write_jsonl(tmp_path / "c.jsonl", documents)
        built = build_tokens([corpus], tmp_path / "p", bytes_section, append_eod=True, cleaning=Cleaning(**cleaning))
        tokens = TokenFile.open(tmp_path / "p").tokens
        texts = bytes(np.where(tokens == 256, 0, tokens).astype("u1")).decode()
        return built, texts.split("\0")[:-1]

    return build


def test_without_cleaning_nothing_changes(cleaned):
    documents = ["sch\u00c3\u00b6n", "a", "a"]
    assert cleaned(documents)[1] == documents


def test_characters_are_repaired_as_by_ftfy(cleaned):
    pytest.importorskip("ftfy")
    _, texts = cleaned(["sch\u00c3\u00b6n &amp; \u201cgut\u201d", "fine"], fix_text=True)
    assert texts == ['sch\u00f6n & "gut"', "fine"]


def test_short_documents_are_left_out_by_characters_after_the_repair(cleaned):
    pytest.importorskip("ftfy")
    built, texts = cleaned(["abc", "\u00c3\u00b6\u00c3\u00b6", ["a", "b", "c"], ""], min_length=3, fix_text=True)
    assert texts == ["abc", "abc"]
    assert (built.counts.short, built.documents) == (2, 2)


def test_of_equal_documents_the_first_stays(cleaned):
    built, texts = cleaned(["a", "b", "a", ["a"], ["b", "a"], "ba", "b"], drop_duplicates=True)
    assert texts == ["a", "b", "ba", "ba"], "sentences are not one text"
    assert (built.counts.duplicates, built.documents) == (3, 4)


def test_without_ftfy_it_says_what_to_install(cleaned, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ftfy", None)
    with pytest.raises(DataError, match=r"pip install 'pretrain\[data\]'"):
        cleaned(["a"], fix_text=True)
    assert not list(tmp_path.glob("p*"))


@given(st.lists(st.lists(st.text("ab", max_size=2), max_size=3)))
def test_equal_documents_and_no_others_have_equal_digests(documents):
    assert len(set(digests_of(documents))) == len(set(map(tuple, documents)))
    seen = SeenDocuments(b"".join(digests_of(documents[:2])))
    expected = [document not in documents[:number] for number, document in enumerate(documents)]
    assert seen.add(digests_of(documents[2:])).tolist() == expected[2:]


@given(st.lists(st.tuples(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=3), max_size=3), st.booleans())))
def test_leaving_documents_out_keeps_the_others_whole(documents):
    def encoded(chosen):
        flat = [sequence for document in chosen for sequence in document]
        tokens = np.array([token for sequence in flat for token in sequence], "<u2")
        return Encoded(tokens, np.array(list(map(len, flat)), "<i4"), np.array(list(map(len, chosen)), np.int64))

    kept = select_documents(
        encoded([document for document, _ in documents]), np.array([keep for _, keep in documents], bool)
    )
    expected = encoded([document for document, keep in documents if keep])
    for name in ("tokens", "lengths", "sequences"):
        assert getattr(kept, name).tolist() == getattr(expected, name).tolist()
