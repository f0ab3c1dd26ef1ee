"""gigatoken gives the ids of the tokenizers library; where it does not, the build stops and leaves nothing."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.tokenizers import fast, load_encoder, load_tokenizer
from pretrain.data.tokenizers.bpe_training import train_tokenizer
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.unfinished import folder_of


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tokenizer.json of this project."""
    file = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    train_tokenizer(DOCUMENTS, 400, file)
    return TokenizerSection(type="huggingface", file=str(file))


@pytest.fixture(scope="module", params=["gpt2", "20B", "trained"])
def section(request, trained):
    if request.param == "trained":
        return trained
    folder = request.getfixturevalue("shared_data")
    if request.param == "20B":
        return TokenizerSection(type="huggingface", file=str(folder / "20B_tokenizer.json"))
    files = {"vocab_file": str(folder / "gpt2-vocab.json"), "merge_file": str(folder / "gpt2-merges.txt")}
    return TokenizerSection(type="gpt2", **files)


@pytest.fixture(scope="module")
def pair(section):
    return load_encoder(section).tokenizer, load_tokenizer(section)


def test_it_is_used_and_describes_itself_equally(pair):
    quick, reference = pair
    assert isinstance(quick, fast.FastTokenizer)
    for fact in ("vocab_size", "eod", "fingerprint"):
        assert getattr(quick, fact) == getattr(reference, fact)


TEXT = st.text(st.characters(codec="utf-8"), max_size=60) | st.text(
    "aB1 .'\n\t<|endoftext|>\u00e9e\u0301\u4e16", max_size=60
)


@settings(max_examples=300)
@given(text=TEXT)
def test_the_ids_are_the_references(pair, text):
    quick, reference = pair
    assert quick.encode(text) == reference.encode(text)
    assert quick.decode(quick.encode(text)) == reference.decode(reference.encode(text))


def test_threads_may_encode_at_once(pair):
    """gigatoken's own object may not: it fails with "Already borrowed" now and then."""
    quick, reference = pair
    texts = [" ".join(DOCUMENTS[number::7]) * 15 for number in range(7)]
    expected = reference.encode_batch(texts)
    with ThreadPoolExecutor(6) as pool:
        for found in pool.map(quick.encode_batch, [texts] * 12):
            assert [ids.tolist() for ids in found] == expected


def test_special_tokens_and_spaces(pair):
    quick, reference = pair
    texts = [
        "<|endoftext|>",
        "a<|endoftext|>b",
        "  <|padding|>  ",
        *(" " * size for size in range(40)),
        "\u212b n\u0303",
    ]
    texts += ["'s 'T don't", "x" * 5000, "\u00a0\u2003\u3000 \r\n", "def f(x):\n        return x", "123456 1,000.5e-3"]
    assert [ids.tolist() for ids in quick.encode_batch(texts)] == reference.encode_batch(texts)


@pytest.mark.usefixtures("small_as_large")
def test_other_ids_stop_the_build_and_leave_nothing(tmp_path, trained, monkeypatch):
    def wrong(self, texts, right=fast.FastTokenizer.encode_batch):
        return [ids[::-1] for ids in right(self, texts)]

    monkeypatch.setattr(fast.FastTokenizer, "encode_batch", wrong)
    corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
    with pytest.raises(
        DataError, match=r"c\.jsonl:1 or a later line: gigatoken gives other tokens.*(?s:.)*--encoder tokenizers"
    ):
        build_tokens([corpus], tmp_path / "p", trained)
    assert not folder_of(tmp_path / "p").exists()
    assert build_tokens([corpus], tmp_path / "p", trained, reference_only=True).compared is None


@pytest.mark.usefixtures("small_as_large")
def test_a_panic_of_the_library_names_the_place(tmp_path, trained, monkeypatch):
    class PanicException(BaseException):
        """What a panic in Rust becomes: no Exception."""

    def panics(self, texts):
        raise PanicException("index out of bounds")

    monkeypatch.setattr(fast.FastTokenizer, "encode_batch", panics)
    corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
    with pytest.raises(DataError, match=r"c\.jsonl:1 or a later line: .*index out of bounds\.\nPass --encoder"):
        build_tokens([corpus], tmp_path / "p", trained)


def test_a_small_corpus_is_encoded_by_the_reference_which_starts_sooner(tmp_path, trained, monkeypatch):
    monkeypatch.setattr(fast, "huggingface", None)
    built = build_tokens([write_jsonl(tmp_path / "c.jsonl", DOCUMENTS[:10])], tmp_path / "p", trained)
    assert (built.documents, built.compared) == (10, None)


def test_a_sample_is_compared_for_documents_of_any_length(tmp_path, trained):
    corpus = write_jsonl(tmp_path / "c.jsonl", ["", "the loss " * 50_000])
    assert build_tokens([corpus], tmp_path / "p", trained).compared == 1


def test_encoding_imports_nothing_that_takes_longer_than_encoding(trained):
    program = (
        "import sys; from pathlib import Path; from pretrain.data.tokenizers import fast\n"
        "print(len(fast.huggingface(Path(sys.argv[1])).encode_batch(['some text'])), 'awkward' in sys.modules)"
    )
    command = [sys.executable, "-c", program, trained.file]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1 False\n"
