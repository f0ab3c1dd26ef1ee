"""gigatoken encodes a tokenizer.json only if all of its features are known to give the reference's ids."""

import json
import random
from pathlib import Path

import pytest

from data.example_corpus import DOCUMENTS
from pretrain.data.tokenizers import fast, load_encoder, load_tokenizer
from pretrain.data.tokenizers.bpe_training import train_tokenizer
from pretrain.data.tokenizers.fast_features import SPLITS
from pretrain.recipe.sections.data import TokenizerSection
from tools.corpus.reference_comparisons import samples_by

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
def section(tmp_path_factory):
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
def test_compared_tokenizers_are_encoded_by_gigatoken(section, feature):
    encoder, reference = load_encoder(section(AGREE[feature])), load_tokenizer(section(AGREE[feature]))
    assert isinstance(encoder.tokenizer, fast.FastTokenizer)
    assert encoder.tokenizer.vocab_size == reference.vocab_size
    assert [ids.tolist() for ids in encoder.tokenizer.encode_batch(TEXTS)] == reference.encode_batch(TEXTS)


@pytest.mark.parametrize("feature", [*AGREE, "with a space"])
def test_ids_of_long_texts_contain_those_of_their_parts(section, feature):
    changed = AGREE.get(feature) or added({"content": "a b"}, {"content": "1 "})
    tokenizer = load_encoder(section(changed)).tokenizer
    texts = [separator.join(TEXTS[first::30]) * 9 for first in range(5) for separator in ("", " ", "a b")]
    assert all(sample.ids for text in texts for sample in samples_by(tokenizer, [text]))


@pytest.mark.parametrize("feature", LEFT)
def test_everything_else_is_left_to_the_reference(section, feature):
    file = Path(section(LEFT[feature]).file)
    assert fast.huggingface(file) is None


def test_another_model_is_left_to_the_reference(tmp_path, section):
    content = json.loads(Path(section({}).file).read_text())
    model = {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}
    (tmp_path / "t.json").write_text(json.dumps(content | {"model": model}))
    encoder = load_encoder(TokenizerSection(type="huggingface", file=str(tmp_path / "t.json")))
    assert encoder.reference is None
