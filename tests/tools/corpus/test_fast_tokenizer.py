"""gigatoken gives the ids of the tokenizers library; where it does not, the build stops and leaves nothing."""

import json
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.tokenizers import load_tokenizer
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import fast_tokenizer as fast
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.encoding import load_encoder
from pretrain.tools.corpus.fast_tokenizer import SPLITS
from pretrain.tools.corpus.unfinished import folder_of
from tools.corpus.reference_comparisons import samples_by


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
        DataError,
        match=r"c\.jsonl:1 or a later line: gigatoken and .* give different tokens.*(?s:.)*--encoder tokenizers",
    ):
        build_tokens([corpus], tmp_path / "p", trained)
    assert not folder_of(tmp_path / "p").exists()
    assert build_tokens([corpus], tmp_path / "p", trained, reference_only=True).counts.texts == 0


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
    assert (built.documents, built.counts.texts) == (10, 0)


def test_a_sample_is_compared_for_documents_of_any_length(tmp_path, trained):
    corpus = write_jsonl(tmp_path / "c.jsonl", ["", "the loss " * 50_000])
    assert build_tokens([corpus], tmp_path / "p", trained).counts.compared == 1


def test_encoding_imports_nothing_that_takes_longer_than_encoding(trained):
    program = (
        "import sys; from pathlib import Path; from pretrain.tools.corpus import fast_tokenizer as fast\n"
        "print(len(fast.huggingface(Path(sys.argv[1])).encode_batch(['some text'])), 'awkward' in sys.modules)"
    )
    command = [sys.executable, "-c", program, trained.file]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "1 False\n"


SIZE = 300
PIECES = [
    *(
        "<x>",
        "<x",
        "x>",
        "<y>",
        "x|",
        "ab",
        "a",
        "he",
        " he",
        "the loss",
        "'s",
        "'T",
        "A",
        "_",
        ". ",
        ".",
        "<|endoftext|>",
    ),
    *(" ", "  ", "    ", "\n", "\t", "\r\n", "\u00a0", "\u3000", "\0", "1", "12", "1234", "\u0663"),
    *("\u00e9", "e\u0301", "\u0338", "\u212b", "\ufb01", "\u4e16", "\U0001f642", "q\u00c3"),
]
RANDOM = random.Random(1)
TEXTS = ["".join(RANDOM.choices(PIECES, k=RANDOM.randint(1, 12))) for _ in range(1500)]


@pytest.fixture(scope="module")
def changed_section(tmp_path_factory):
    """Return the section of a trained tokenizer.json in which something is changed."""
    folder = tmp_path_factory.mktemp("changed")
    train_tokenizer(DOCUMENTS, SIZE, folder / "trained.json")
    trained = json.loads((folder / "trained.json").read_text())

    def make(change):
        new = {
            **change,
            "model": trained["model"] | change.get("model", {}),
            "added_tokens": trained["added_tokens"] + change.get("added_tokens", []),
        }
        file = folder / "changed.json"
        file.write_text(json.dumps(trained | new))
        return TokenizerSection(type="huggingface", file=str(file))

    return make


def added(*tokens, first=SIZE):
    plain = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"added_tokens": [{"id": first + number, **plain, **token} for number, token in enumerate(tokens)]}


def x(**changed):
    return {"content": "<x>", **changed}


def level(**changed):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True, **changed}


def split(regex, then=None, **changed):
    first = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False, **changed}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [first, then or level(use_regex=False)]}}


NFC = {"normalizer": {"type": "NFC"}}
SPACES = [{"content": " " * size, "special": False, "normalized": True} for size in (2, 4)]

AGREE = {
    "as trained": {},
    "NFC": NFC,
    "plain": added(x()),
    "lstrip": added(x(lstrip=True)),
    "rstrip": added(x(rstrip=True)),
    "both": added(x(lstrip=True, rstrip=True)),
    "normalized": added(x(normalized=True)),
    "not special": added(x(special=False)),
    "one in another": added({"content": "<x"}, x(), {"content": "<x><"}),
    "two that strip": added(x(lstrip=True), {"content": "ab", "rstrip": True}),
    "as in GPT-NeoX": added(x(), *SPACES) | NFC,
    "normalized, NFC": added({"content": "x|", "normalized": True}) | NFC,
    "in the vocabulary": added({"content": "a", "id": 65}),
    "Llama 3": split(SPLITS[0]),
    "Qwen 2": split(SPLITS[1]),
    "ignore_merges": split(SPLITS[0]) | {"model": {"ignore_merges": True}},
    "older ByteLevel": {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}},
    "empty affixes": {"model": {"continuing_subword_prefix": "", "end_of_word_suffix": ""}},
    "unk_token": {"model": {"unk_token": "<|endoftext|>", "fuse_unk": True}},
    "truncation": {
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
    },
}

LEFT = {
    "single_word": added({"content": "ab", "single_word": True}),
    "use_regex": {"pre_tokenizer": level(use_regex=False)},
    "no pre_tokenizer": {"pre_tokenizer": None},
    "add_prefix_space": {"pre_tokenizer": level(add_prefix_space=True)},
    "another pre_tokenizer": {"pre_tokenizer": {"type": "Whitespace"}},
    "another split": split(r"\p{L}+|\s+"),
    "a split that removes": split(SPLITS[0], behavior="Removed"),
    "a split and another": split(SPLITS[0], level()),
    "end_of_word_suffix": {"model": {"end_of_word_suffix": "</w>"}},
    "continuing_subword_prefix": {"model": {"continuing_subword_prefix": "##", "merges": []}},
    "dropout": {"model": {"dropout": 0.5}},
    "byte_fallback": {"model": {"byte_fallback": True}},
    "another normalizer": {"normalizer": {"type": "Lowercase"}},
    "two alike": added(x(), x()),
    "empty": added({"content": ""}),
    "another id": added(x(), first=SIZE + 50),
    "ids in another order": added(x(id=SIZE + 1), {"content": "<y>", "id": SIZE}),
    "another id than in the vocabulary": added({"content": "a"}),
    "changed by NFC": added({"content": "e\u0301", "normalized": True}) | NFC,
    "joined by NFC": added(x(normalized=True)) | NFC,
    "overlapping": added(x(normalized=True), {"content": "x>"}),
    "spaces and one that takes them": added(x(lstrip=True), *SPACES),
    "tokens around the text": {
        "post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}
    },
    "something new": {"model": {"brand_new": 1}},
}


@pytest.mark.parametrize("feature", AGREE)
def test_compared_tokenizers_are_encoded_by_gigatoken(changed_section, feature):
    encoder, reference = load_encoder(changed_section(AGREE[feature])), load_tokenizer(changed_section(AGREE[feature]))
    assert isinstance(encoder.tokenizer, fast.FastTokenizer)
    assert encoder.tokenizer.vocab_size == reference.vocab_size
    assert [ids.tolist() for ids in encoder.tokenizer.encode_batch(TEXTS)] == reference.encode_batch(TEXTS)


@pytest.mark.parametrize("feature", [*AGREE, "with a space"])
def test_ids_of_long_texts_contain_those_of_their_parts(changed_section, feature):
    changed = AGREE.get(feature) or added({"content": "a b"}, {"content": "1 "})
    tokenizer = load_encoder(changed_section(changed)).tokenizer
    texts = [separator.join(TEXTS[first::30]) * 9 for first in range(5) for separator in ("", " ", "a b")]
    assert all(sample.ids for text in texts for sample in samples_by(tokenizer, [text]))


@pytest.mark.parametrize("feature", LEFT)
def test_everything_else_is_left_to_the_reference(changed_section, feature):
    file = Path(changed_section(LEFT[feature]).file)
    assert fast.huggingface(file) is None


def test_another_model_is_left_to_the_reference(tmp_path, changed_section):
    content = json.loads(Path(changed_section({}).file).read_text())
    model = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}
    (tmp_path / "t.json").write_text(json.dumps(content | {"model": model}))
    encoder = load_encoder(TokenizerSection(type="huggingface", file=str(tmp_path / "t.json")))
    assert encoder.reference is None
