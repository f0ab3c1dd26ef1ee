"""`pretrain data inspect`: what the files hold, and that it belongs to the tokenizer."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import TokenFile, bin_path, check_ids, idx_path, unigram_entropy
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.inspection import inspect_tokens, repair_lengths


@pytest.fixture
def lines(tmp_path, bytes_section):
    """Describe the token files of documents, as a dict."""

    def describe(documents):
        prefix = tmp_path / "p"
        build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], prefix, bytes_section, append_eod=True)
        told = inspect_tokens(str(prefix), load_tokenizer(bytes_section))
        return {line[:12].strip(): line[12:] for line in told if not line.startswith(" ")}

    return describe


def test_counts_lengths_and_the_beginning_are_shown(lines):
    told = lines(["a", "bc", "", ["def", "g"], "hello"])
    assert told["documents"] == "5 (1 empty)"
    assert told["sequences"] == "5"
    assert told["tokens"] == "16 as uint16"
    assert told["lengths"] == "shortest 0, 25 % 2, median 3, 75 % 5, 99 % 6, longest 6; mean 3.2 tokens a document"
    assert told["ids"] == "16 checked, all below 257"
    assert told["ends"] == "4 of 4 documents end in the end-of-document token 256"
    assert told["document 0 b"] == "egins with 'a<|endoftext|>'"


def test_the_histogram_counts_by_powers_of_two(tmp_path, bytes_section):
    documents = ["", "a", "bb", "ccc", "d" * 4, "e" * 7, "f" * 8, "g" * 100]
    build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], tmp_path / "p", bytes_section)
    rows = [line.split() for line in inspect_tokens(str(tmp_path / "p")) if line.startswith(" ")]
    counts = {" ".join(row[: row.index("tokens")]): int(row[row.index("tokens") + 1]) for row in rows}
    assert counts == {
        "0": 1,
        "1": 1,
        "2 to 3": 2,
        "4 to 7": 2,
        "8 to 15": 1,
        "16 to 31": 0,
        "32 to 63": 0,
        "64 to 127": 1,
    }


def test_samples_are_spread_over_the_file(tmp_path, bytes_section):
    documents = [f"number {number}" if number % 2 else "" for number in range(100)]
    build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], tmp_path / "p", bytes_section)
    told = inspect_tokens(str(tmp_path / "p"), load_tokenizer(bytes_section), samples=3)
    shown = [line for line in told if line.startswith("document ")]
    assert shown == [f"document {n} begins with 'number {n}'" for n in (1, 49, 99)]


class TestRepair:
    """Of files as Megatron-DeepSpeed's preprocess_data.py --append-eod makes them."""

    @pytest.fixture
    def megatron_deepspeeds(self, tmp_path, bytes_section):
        """Its `Encoder.encode`: the end is appended to the ids, and not counted."""
        documents = ["first", ["two", "sentences"], "", "last"]
        build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], tmp_path / "good", bytes_section, append_eod=True)
        build_tokens([tmp_path / "c.jsonl"], tmp_path / "bad", bytes_section)
        shutil.copy(bin_path(tmp_path / "good"), bin_path(tmp_path / "bad"))
        return tmp_path / "bad"

    def test_such_files_are_recognized_and_the_repair_is_offered(self, megatron_deepspeeds):
        with pytest.raises(DataError, match=r"Megatron-DeepSpeed's.*\n.*data inspect --repair"):
            list(inspect_tokens(str(megatron_deepspeeds)))

    def test_makes_the_index_of_a_right_build_and_keeps_the_old_one(self, tmp_path, megatron_deepspeeds):
        before = idx_path(megatron_deepspeeds).read_bytes()
        assert repair_lengths(megatron_deepspeeds) == 3
        assert idx_path(megatron_deepspeeds).read_bytes() == idx_path(tmp_path / "good").read_bytes()
        assert Path(f"{idx_path(megatron_deepspeeds)}.before-repair").read_bytes() == before

    def test_an_intact_index_is_not_changed(self, tmp_path, megatron_deepspeeds):
        with pytest.raises(DataError, match="lacks no token"):
            repair_lengths(tmp_path / "good")

    @pytest.mark.parametrize(
        ("kept", "end", "message"),
        [(None, [1], "lacks 4 tokens for 3 documents"), (-1, [7], "do not end in EOD")],
    )
    def test_an_index_with_other_faults_is_not_changed(self, megatron_deepspeeds, kept, end, message):
        found = np.fromfile(bin_path(megatron_deepspeeds), "<u2")
        np.append(found[:kept], np.array(end, "<u2")).tofile(bin_path(megatron_deepspeeds))
        before = idx_path(megatron_deepspeeds).read_bytes()
        with pytest.raises(DataError, match=message):
            repair_lengths(megatron_deepspeeds)
        assert idx_path(megatron_deepspeeds).read_bytes() == before


def test_it_reads_the_whole_index(token_files):
    content = bytearray(idx_path(token_files).read_bytes())
    content[34 + 4 * len(DOCUMENTS) + 8 * 100] ^= 2
    idx_path(token_files).write_bytes(content)
    with pytest.raises(DataError, match="sequence 100 cannot begin"):
        list(inspect_tokens(str(token_files)))


class TestTokenIds:
    def change(self, prefix, token):
        tokens = np.fromfile(bin_path(prefix), "<u2")
        tokens[tokens.size // 2] = token
        tokens.tofile(bin_path(prefix))

    def test_the_largest_id_may_be_the_last_of_the_vocabulary(self, token_files):
        check_ids(TokenFile.open(token_files), 257)

    def test_an_id_beyond_the_vocabulary_is_named_with_its_size(self, token_files):
        self.change(token_files, 300)
        with pytest.raises(DataError, match="holds token id 300, but the tokenizer has only 257 tokens"):
            check_ids(TokenFile.open(token_files), 257)


class TestUnigramEntropy:
    def test_is_minus_the_mean_log_frequency(self, token_files):
        tokens = np.fromfile(bin_path(token_files), "<u2")
        counts = np.bincount(tokens).astype(np.float64)
        expected = -np.log((counts / counts.sum())[tokens]).mean()
        assert unigram_entropy(str(token_files), 257) == pytest.approx(expected, rel=1e-12)

    def test_of_equally_frequent_tokens_is_the_log_of_their_number(self, tmp_path, bytes_section):
        build_tokens([write_jsonl(tmp_path / "c.jsonl", ["abcdefgh"] * 9)], tmp_path / "p", bytes_section)
        assert unigram_entropy(str(tmp_path / "p"), 257) == pytest.approx(np.log(8))

    def test_a_part_of_the_file_is_enough(self, token_files):
        whole = unigram_entropy(str(token_files), 257)
        assert unigram_entropy(str(token_files), 257, max_tokens=10_000) == pytest.approx(whole, rel=0.05)
