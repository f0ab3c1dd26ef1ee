"""`pretrain data inspect`: what the files hold, and that it belongs to the tokenizer."""

import numpy as np
import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.build import build_tokens
from pretrain.data.entropy import unigram_entropy
from pretrain.data.inspection import check_ids, inspect_tokens
from pretrain.data.token_file import TokenFile, bin_path, idx_path
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError


@pytest.fixture
def lines(tmp_path, bytes_section):
    """Describe the token files of documents, as a dict."""

    def describe(documents):
        prefix = tmp_path / "p"
        build_tokens([write_jsonl(tmp_path / "c.jsonl", documents)], prefix, bytes_section, append_eod=True)
        told = inspect_tokens(str(prefix), load_tokenizer(bytes_section))
        return {line[:12].strip(): line[12:] for line in told}

    return describe


def test_counts_lengths_and_the_beginning_are_told(lines):
    told = lines(["a", "bc", "", ["def", "g"], "hello"])
    assert told["documents"] == "5 (1 empty)"
    assert told["sequences"] == "5"
    assert told["tokens"] == "16 as uint16"
    assert told["lengths"] == "shortest 0, 25 % 2, median 3, 75 % 5, 99 % 6, longest 6; mean 3.2 tokens a document"
    assert told["begins with"] == repr("a<|endoftext|>bc<|endoftext|>defg<|endoftext|>hello<|endoftext|>")


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
