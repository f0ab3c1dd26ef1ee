"""Every tokenizer: text to ids and back, fingerprints, and errors for broken files."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS
from pretrain.data.tokenizers import load_tokenizer
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.data.tokenizers.characters import train_characters
from pretrain.data.tokenizers.load import GPT2_VOCAB_SIZE, expected_vocab_size
from pretrain.data.tokenizers.tokenizer import end_token
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.convert.formats.hugging_face_writer import tokenizer_files
from pretrain.tools.corpus.encoding import load_encoder

_TESTS = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def trained_file(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    train_tokenizer(DOCUMENTS, 300, file)
    return file


@pytest.fixture(scope="session")
def trained(trained_file):
    return load_tokenizer(TokenizerSection(type="huggingface", file=str(trained_file)))


@pytest.fixture
def gpt2_section(tmp_path, trained_file):
    """The trained tokenizer, cut into GPT-2's two files."""
    model = json.loads(trained_file.read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    return TokenizerSection(
        type="gpt2", vocab_file=str(tmp_path / "vocab.json"), merge_file=str(tmp_path / "merges.txt")
    )


class TestBytes:
    tokenizer = load_tokenizer(TokenizerSection(type="bytes"))

    def test_has_256_bytes_and_the_end_of_a_document(self):
        assert (self.tokenizer.vocab_size, self.tokenizer.eod) == (257, 256)
        assert self.tokenizer.encode("a\u00e9") == [97, 0xC3, 0xA9]

    @given(text=st.text())
    def test_text_comes_back(self, text):
        assert self.tokenizer.decode(self.tokenizer.encode(text)) == text

    def test_ids_without_text_do_no_harm(self):
        assert self.tokenizer.decode([97, 256, 300, -1, 0xFF, 98]) == "a<|endoftext|>\ufffdb"


class TestByteLevelBpe:
    @given(text=st.text())
    def test_text_comes_back(self, trained, text):
        ids = trained.encode(text)
        assert all(0 <= token < trained.vocab_size for token in ids)
        assert trained.decode(ids) == text

    def test_a_batch_is_its_texts_one_by_one(self, trained):
        assert trained.encode_batch(DOCUMENTS[:20]) == [trained.encode(text) for text in DOCUMENTS[:20]]

    def test_ids_of_a_padded_embedding_are_left_out(self, trained):
        assert trained.decode([*trained.encode("loss"), trained.vocab_size, 10**6, -1]) == "loss"

    def test_the_end_of_a_document_is_shown(self, trained):
        assert trained.decode([trained.eod]) == "<|endoftext|>"

    def test_gpt2s_two_files_give_the_ids_of_the_one(self, gpt2_section, trained):
        tokenizer = load_tokenizer(gpt2_section)
        assert tokenizer.encode(DOCUMENTS[1]) == trained.encode(DOCUMENTS[1])
        assert (tokenizer.eod, tokenizer.vocab_size) == (trained.eod, trained.vocab_size)

    def test_gpt2_takes_the_name_of_a_special_token_as_text(self, gpt2_section):
        tokenizer = load_tokenizer(gpt2_section)
        ids = tokenizer.encode("a<|endoftext|>b")
        assert tokenizer.eod not in ids
        assert tokenizer.decode(ids) == "a<|endoftext|>b"

    def test_survives_pickling(self, trained):
        copy = pickle.loads(pickle.dumps(trained))
        assert copy.encode("the loss") == trained.encode("the loss")
        assert copy.fingerprint == trained.fingerprint

    def test_truncation_and_padding_of_the_file_are_switched_off(self, tmp_path, trained_file, trained):
        content = json.loads(trained_file.read_text())
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        content["padding"] = {
            "strategy": {"Fixed": 512}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<|endoftext|>",
        }  # fmt: skip
        file = tmp_path / "truncating.json"
        file.write_text(json.dumps(content))
        tokenizer = load_tokenizer(TokenizerSection(type="huggingface", file=str(file)))
        assert tokenizer.encode(DOCUMENTS[3]) == trained.encode(DOCUMENTS[3])


class TestPublishedTokenizers:
    def test_gpt2(self, shared_data):
        tokenizer = load_tokenizer(
            TokenizerSection(
                type="gpt2",
                vocab_file=str(shared_data / "gpt2-vocab.json"),
                merge_file=str(shared_data / "gpt2-merges.txt"),
            )
        )
        assert (tokenizer.vocab_size, tokenizer.eod) == (50257, 50256)
        assert tokenizer.encode("Hello world") == [15496, 995]
        assert tokenizer.decode([995]) == " world"

    def test_gpt_neox_20b(self, shared_data):
        tokenizer = load_tokenizer(TokenizerSection(type="huggingface", file=str(shared_data / "20B_tokenizer.json")))
        assert (tokenizer.vocab_size, tokenizer.eod) == (50277, 0)
        text = "def f(x):\n    return x  # \u4e16"
        assert tokenizer.decode(tokenizer.encode(text)) == text


class TestFingerprint:
    def test_is_the_contents_not_the_path(self, tmp_path, trained_file, trained):
        copy = tmp_path / "copy.json"
        copy.write_bytes(trained_file.read_bytes())
        assert load_tokenizer(TokenizerSection(type="huggingface", file=str(copy))).fingerprint == trained.fingerprint

    def test_changes_with_the_contents(self, tmp_path, trained):
        other = tmp_path / "other.json"
        train_tokenizer(DOCUMENTS, 299, other)
        assert load_tokenizer(TokenizerSection(type="huggingface", file=str(other))).fingerprint != trained.fingerprint


class TestBrokenFiles:
    def error(self, **section):
        with pytest.raises(DataError) as caught:
            load_tokenizer(
                TokenizerSection.model_construct(**dict.fromkeys(("vocab_file", "merge_file", "file")) | section)
            )
        assert len(str(caught.value).splitlines()) <= 3
        return str(caught.value)

    def test_a_file_that_is_not_named(self):
        assert "type gpt2 needs vocab_file and merge_file; merge_file is not given" in self.error(
            type="gpt2", vocab_file="v.json"
        )

    def test_a_file_that_is_not_there(self, tmp_path):
        missing = str(tmp_path / "none.json")
        assert f"{missing} cannot be read: No such file" in self.error(type="huggingface", file=missing)

    def test_a_file_of_something_else(self, tmp_path):
        (tmp_path / "x.json").write_text("{}")
        assert "x.json is not a tokenizer.json" in self.error(type="huggingface", file=str(tmp_path / "x.json"))

    @pytest.mark.parametrize("encode", [load_tokenizer, load_encoder])
    @pytest.mark.parametrize("place", ["vocab", "added_tokens"])
    def test_an_id_that_is_too_large(self, tmp_path, trained_file, place, encode):
        """The libraries would set aside memory for four thousand million tokens, and abort."""
        content = json.loads(trained_file.read_text())
        if place == "vocab":
            content["model"]["vocab"]["new"] = 4_000_000_000
        else:
            content["added_tokens"].append(content["added_tokens"][0] | {"content": "new", "id": 4_000_000_000})
        file = tmp_path / "large.json"
        file.write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"large\.json holds the token id 4,000,000,000; the largest .* 4,194,303"):
            encode(TokenizerSection(type="huggingface", file=str(file)))

    @pytest.mark.parametrize("encode", [load_tokenizer, load_encoder])
    def test_an_id_that_is_too_large_in_gpt2s_vocabulary(self, gpt2_section, encode):
        file = Path(gpt2_section.vocab_file)
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model": 4_000_000_000}))
        with pytest.raises(DataError, match=r"vocab\.json holds the token id 4,000,000,000"):
            encode(gpt2_section)

    def test_a_file_at_which_the_library_panics(self, tmp_path, trained_file):
        """Its PanicException is no Exception; merges without the prefix make it."""
        content = json.loads(trained_file.read_text())
        content["model"]["continuing_subword_prefix"] = "##"
        (tmp_path / "x.json").write_text(json.dumps(content))
        assert "x.json is not a tokenizer.json" in self.error(type="huggingface", file=str(tmp_path / "x.json"))

    def test_merges_of_another_vocabulary(self, tmp_path, gpt2_section):
        (tmp_path / "merges.txt").write_text("#version: 0.2\nqq zz\n")
        assert "are not GPT-2's vocab.json and merges.txt" in self.error(**gpt2_section.model_dump())

    @pytest.mark.parametrize("load", [load_tokenizer, lambda section: load_encoder(section).tokenizer])
    def test_a_vocabulary_without_an_end_of_document_fails_where_one_is_needed(self, tmp_path, trained_file, load):
        file = tmp_path / "endless.json"
        file.write_text(trained_file.read_text().replace("<|endoftext|>", "<|nothing|>"))
        tokenizer = load(TokenizerSection(type="huggingface", file=str(file)))
        assert tokenizer.eod is None
        with pytest.raises(
            DataError, match=r"^--append-eod needs an end-of-document token, and the tokenizer has none"
        ):
            end_token(tokenizer, "--append-eod")

    def test_other_names_for_the_end_are_known(self, tmp_path, trained_file):
        file = tmp_path / "llama.json"
        file.write_text(trained_file.read_text().replace("<|endoftext|>", "</s>"))
        assert load_tokenizer(TokenizerSection(type="huggingface", file=str(file))).eod == 0


class TestCharacters:
    """A vocabulary of the characters of a text, `pretrain tokenizer train --type char`."""

    @staticmethod
    def load(file):
        return load_tokenizer(TokenizerSection(type="huggingface", file=str(file)))

    @settings(max_examples=20)
    @given(text=st.text(min_size=1))
    def test_its_own_text_comes_back_character_by_character(self, text, tmp_path_factory):
        file = tmp_path_factory.mktemp("characters") / "t.json"
        assert train_characters([text[:3], text[3:]], file) == len(set(text))
        tokenizer = self.load(file)
        assert tokenizer.encode(text) == [sorted(set(text)).index(character) for character in text]
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_a_character_that_it_does_not_have_is_named(self, tmp_path):
        train_characters(["abc\n"], tmp_path / "t.json")
        with pytest.raises(DataError) as caught:
            self.load(tmp_path / "t.json").encode("ab\u00e9c")
        first, second = str(caught.value).splitlines()
        assert first == "the tokenizer has no token for the character '\u00e9' (U+00E9)."
        assert "--unknown" in second

    def test_or_is_unknown_by_option(self, tmp_path):
        assert train_characters(["abc"], tmp_path / "t.json", unknown=True) == 4
        tokenizer = self.load(tmp_path / "t.json")
        assert tokenizer.encode("a\u00e9c") == [0, 3, 2]
        assert tokenizer.decode([0, 3, 2]) == "a<unk>c"

    def test_transformers_reads_it(self, tmp_path):
        transformers = pytest.importorskip("transformers")
        text = "one , two\n\tthree . don 't \u00e9\U0001f600"
        train_characters([text], tmp_path / "tokenizer.json")
        for name, content in tokenizer_files([tmp_path / "tokenizer.json"], max_length=64).items():
            (tmp_path / name).write_bytes(content)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert theirs(text)["input_ids"] == self.load(tmp_path / "tokenizer.json").encode(text)
        assert theirs.decode(theirs(text)["input_ids"]) == text


class TestTraining:
    def test_end_of_document_first_then_bytes_then_merges(self, trained_file, trained):
        vocab = json.loads(trained_file.read_text())["model"]["vocab"]
        assert (trained.vocab_size, trained.eod) == (300, 0)
        assert sum(len(token) == 1 for token in vocab) == 256
        assert len(trained.encode(" entropy")) < len(" entropy")

    def test_the_same_text_gives_the_same_file(self, tmp_path, trained_file):
        """Threads and the seed of Python's hashes make no difference."""
        program = (
            "import sys; from pathlib import Path; from data.example_corpus import DOCUMENTS;"
            "from pretrain.data.tokenizers.bpe import train_tokenizer;"
            "train_tokenizer(DOCUMENTS, 300, Path(sys.argv[1]))"
        )
        for number, (seed, threads) in enumerate([("1", "true"), ("2", "false")]):
            file = tmp_path / f"{number}.json"
            environment = os.environ | {
                "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": threads, "PYTHONPATH": str(_TESTS),
            }  # fmt: skip
            subprocess.run([sys.executable, "-c", program, str(file)], check=True, env=environment)
            assert file.read_bytes() == trained_file.read_bytes()

    def test_too_little_text_gives_fewer_tokens(self, tmp_path):
        assert train_tokenizer(["aaaa"], 1000, tmp_path / "t.json") < 300

    @pytest.mark.parametrize(("texts", "size", "message"), [(["a"], 256, "too small"), (["", ""], 300, "no text")])
    def test_invalid_training_input_is_an_error(self, tmp_path, texts, size, message):
        with pytest.raises(DataError, match=message):
            train_tokenizer(texts, size, tmp_path / "t.json")
        assert list(tmp_path.iterdir()) == []

    def test_an_existing_file_is_kept(self, tmp_path):
        file = tmp_path / "t.json"
        file.write_text("precious")
        with pytest.raises(DataError, match="exists already"):
            train_tokenizer(["a"], 300, file)
        assert file.read_text() == "precious"
        train_tokenizer(["a"], 300, file, force=True)
        assert file.read_text() != "precious"


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
