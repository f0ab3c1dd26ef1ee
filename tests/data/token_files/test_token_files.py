"""Token files are Megatron's, and damage is found before anything reads them."""

import gc
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.data.token_files.reading import TokenFile, _hashed, bin_path, for_each, idx_path
from pretrain.data.token_files.writing import DTYPE_CODES, Encoded, IndexPart, TokenWriter, token_dtype, write_index
from pretrain.errors import DataError

documents_of_sequences = st.lists(st.lists(st.lists(st.integers(0, 65_000), min_size=1, max_size=9), max_size=3))


def write(prefix, documents, dtype="<u2"):
    """Write documents, each a list of sequences, one at a time."""
    lengths, ends = io.BytesIO(), io.BytesIO()
    with bin_path(prefix).open("wb") as bin_file, idx_path(prefix).open("wb") as idx_file:
        writer = TokenWriter(bin_file, lengths, ends)
        for document in documents:
            writer.add(encoded([document], dtype))
        part = IndexPart(np.frombuffer(lengths.getvalue(), "<i4"), np.frombuffer(ends.getvalue(), "<i8"))
        write_index(idx_file, np.dtype(dtype), [part])


def encoded(documents, dtype):
    sequences = [sequence for document in documents for sequence in document]
    return Encoded(
        np.array([token for sequence in sequences for token in sequence], dtype),
        np.array([len(sequence) for sequence in sequences], np.int32),
        np.array([len(document) for document in documents], np.int64),
    )


def megatrons_files(prefix, documents, dtype):
    """Write the same with megatron-core."""
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=dtype)
    for document in documents:
        builder.add_document([token for sequence in document for token in sequence], [len(s) for s in document])
    builder.finalize(str(idx_path(prefix)))


@given(documents=documents_of_sequences, dtype=st.sampled_from([np.uint16, np.int32]))
def test_the_bytes_are_those_of_megatrons_builder(bridged, tmp_path_factory, documents, dtype):
    folder = tmp_path_factory.mktemp("files")
    write(folder / "ours", documents, dtype)
    megatrons_files(folder / "megatrons", documents, dtype)
    for suffix in (".bin", ".idx"):
        assert (folder / f"ours{suffix}").read_bytes() == (folder / f"megatrons{suffix}").read_bytes()


@given(documents=documents_of_sequences)
def test_written_files_are_read_back(tmp_path_factory, documents):
    prefix = tmp_path_factory.mktemp("files") / "p"
    write(prefix, documents)
    tokens = TokenFile.open(prefix)
    tokens.check_order()
    flat = [sequence for document in documents for sequence in document]
    assert tokens.tokens.tolist() == [token for sequence in flat for token in sequence]
    assert tokens.lengths.tolist() == [len(sequence) for sequence in flat]
    assert tokens.document_lengths().tolist() == [sum(map(len, document)) for document in documents]
    assert tokens.documents == len(documents)


def test_offsets_continue_where_the_previous_part_ended(tmp_path, monkeypatch):
    """The offsets are written in parts; three parts here."""
    monkeypatch.setattr("pretrain.data.token_files.writing._WRITTEN_AT_ONCE", 2)
    write(tmp_path / "p", [[[1, 2, 3]], [[4]], [[5, 6]], [[7]], [[8, 9]]])
    assert TokenFile.open(tmp_path / "p").offsets.tolist() == [0, 6, 8, 12, 14]


def test_megatron_reads_our_files(bridged, tmp_path):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    write(tmp_path / "p", [[[1, 2, 3]], [], [[4], [5, 6]]])
    dataset = IndexedDataset(str(tmp_path / "p"))
    assert [part.tolist() for part in dataset[0:3]] == [[1, 2, 3], [4], [5, 6]]
    assert dataset.document_indices.tolist() == [0, 1, 1, 3]


@pytest.mark.parametrize(
    ("vocab_size", "name"), [(257, "uint16"), (65_499, "uint16"), (65_500, "int32"), (99_999, "int32")]
)
def test_the_dtype_is_megatrons_choice(vocab_size, name):
    assert token_dtype(vocab_size).name == name


def test_windows_are_spread_over_the_file(tmp_path):
    write(tmp_path / "p", [[list(range(1000))]])
    tokens = TokenFile.open(tmp_path / "p")
    assert sum(window.size for window in tokens.windows(1000)) == 1000
    windows = list(tokens.windows(100))
    assert sum(window.size for window in windows) <= 100
    assert (windows[0][0], windows[-1][-1]) == (0, 999)


class TestDamage:
    @pytest.fixture
    def prefix(self, tmp_path):
        write(tmp_path / "p", [[[1, 2, 3]], [[4, 5]]])
        return tmp_path / "p"

    def error(self, prefix):
        with pytest.raises(DataError) as caught:
            TokenFile.open(prefix)
        assert len(str(caught.value).splitlines()) <= 3
        return str(caught.value)

    @pytest.mark.parametrize("suffix", [".bin", ".idx"])
    def test_a_missing_file_is_named_with_the_command_that_makes_it(self, prefix, suffix):
        prefix.with_suffix(suffix).unlink()
        assert f"p{suffix} is missing" in self.error(prefix)
        assert "pretrain data build" in self.error(prefix)

    def test_the_file_that_is_meant_is_named_where_the_key_of_the_text_was_left_out(self, prefix):
        write(prefix.with_name("mine_text_document"), [[[1]]])
        assert f"Did you mean '{prefix.with_name('mine_text_document')}'?" in self.error(prefix.with_name("mine"))

    def test_a_truncated_bin_is_named_with_both_sizes(self, prefix):
        bin_path(prefix).write_bytes(bin_path(prefix).read_bytes()[:-3])
        assert "p.bin is truncated: 7 bytes, p.idx expects 10" in self.error(prefix)

    def test_a_bin_that_is_too_long_is_an_error_too(self, prefix):
        """Megatron-DeepSpeed's --append-eod does not count the end-of-document tokens in the index."""
        bin_path(prefix).write_bytes(bin_path(prefix).read_bytes() + b"\x00\x00")
        assert "p.bin has 12 bytes, p.idx expects 10" in self.error(prefix)

    @pytest.mark.parametrize("kept", [1, 20, 33, 34, 40, -1])
    def test_a_truncated_idx_is_named_with_its_size(self, prefix, kept):
        content = idx_path(prefix).read_bytes()[:kept]
        idx_path(prefix).write_bytes(content)
        assert "p.idx is truncated" in self.error(prefix)
        assert f"{len(content)} bytes" in self.error(prefix)

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04 something else entirely, long enough for a header"])
    def test_another_format_is_recognised(self, prefix, content):
        idx_path(prefix).write_bytes(content)
        assert "not an index of Megatron's format" in self.error(prefix)

    @pytest.mark.parametrize(("place", "value"), [(9, 2), (17, 6), (17, 0)])
    def test_versions_and_dtypes_that_hold_no_tokens_are_refused(self, prefix, place, value):
        content = bytearray(idx_path(prefix).read_bytes())
        content[place] = value
        idx_path(prefix).write_bytes(content)
        assert "only version 1 and codes 1-5, 8 are read" in self.error(prefix)

    def test_documents_must_end_with_the_last_sequence(self, prefix):
        content = bytearray(idx_path(prefix).read_bytes())
        content[-8] = 7
        idx_path(prefix).write_bytes(content)
        assert "is damaged" in self.error(prefix)

    def test_offsets_that_do_not_follow_from_the_lengths_are_found(self, tmp_path):
        write(tmp_path / "p", [[[1, 2, 3]], [[4, 5]], [[6]]])
        content = bytearray(idx_path(tmp_path / "p").read_bytes())
        content[34 + 12 + 8] = 4
        idx_path(tmp_path / "p").write_bytes(content)
        with pytest.raises(DataError, match="sequence 1 cannot begin at byte 4"):
            TokenFile.open(tmp_path / "p").check_order()

    def test_a_sequence_of_negative_length_is_found(self, prefix):
        content = bytearray(idx_path(prefix).read_bytes())
        content[34:38] = (-3).to_bytes(4, "little", signed=True)
        idx_path(prefix).write_bytes(content)
        assert "is damaged" in self.error(prefix)


def test_identity_differs_for_other_content(tmp_path):
    write(tmp_path / "a", [[[1, 2]], [[3]]])
    write(tmp_path / "same", [[[1, 2]], [[3]]])
    write(tmp_path / "other_tokens", [[[1, 2]], [[4]]])
    write(tmp_path / "other_documents", [[[1]], [[2, 3]]])
    names = ("a", "same", "other_tokens", "other_documents")
    identities = {name: TokenFile.open(tmp_path / name).identity() for name in names}
    assert identities["a"] == identities["same"]
    assert len(set(identities.values())) == 3


class TestIdentityOfLargeFiles:
    NUMBER = 600_000
    LENGTHS = np.random.default_rng(1).integers(1, 20, NUMBER).astype(np.int32)
    IDS = np.random.default_rng(2).integers(0, 60_000, LENGTHS.sum()).astype("<u2")

    def identity(self, prefix, lengths, ids):
        with idx_path(prefix).open("wb") as stream:
            write_index(stream, ids.dtype, [IndexPart(lengths, np.arange(1, self.NUMBER + 1, dtype=np.int64))])
        ids.tofile(bin_path(prefix))
        return TokenFile.open(prefix).identity()

    @pytest.fixture
    def usual(self, tmp_path):
        return self.identity(tmp_path / "usual", self.LENGTHS, self.IDS)

    @pytest.mark.parametrize("apart", [12_000, 150_000])
    def test_two_documents_of_the_middle_that_are_exchanged_are_seen(self, tmp_path, usual, apart):
        first, second = 300_000, 300_000 + apart
        begins = np.cumsum(self.LENGTHS) - self.LENGTHS
        cuts = [begins[first], begins[first + 1], begins[second], begins[second + 1]]
        before, one, between, other, after = np.split(self.IDS, cuts)
        assert one.size != other.size
        lengths = self.LENGTHS.copy()
        lengths[[first, second]] = lengths[[second, first]]
        ids = np.concatenate([before, other, between, one, after])
        assert self.identity(tmp_path / "p", lengths, ids) != usual

    def test_other_ids_from_the_middle_on_are_seen(self, tmp_path, usual):
        ids = self.IDS.copy()
        ids[2_000_000:-1_000_000] += 1
        assert self.identity(tmp_path / "p", self.LENGTHS, ids) != usual

    def test_a_copy_with_another_name_and_time_has_the_same(self, tmp_path, usual):
        assert self.identity(tmp_path / "copy", self.LENGTHS, self.IDS) == usual


@given(size=st.one_of(st.integers(0, 1 << 23), st.integers(0, 1 << 50)))
def test_the_hashed_parts_are_bounded_and_spread(size):
    seen = _hashed(size)
    assert all(0 <= begin <= end <= size for begin, end in seen)
    assert sum(end - begin for begin, end in seen) <= 3 << 20
    unseen = [later - end for (_, end), (later, _) in itertools.pairwise(seen)]
    assert (seen[0][0], seen[-1][1], max(unseen, default=0) <= size / 63) == (0, size, True)


def test_every_code_is_its_megatron_dtype(bridged):
    from megatron.core.datasets.indexed_dataset import DType

    assert {code: np.dtype(DType.dtype_from_code(code)) for code in DTYPE_CODES} == DTYPE_CODES


def test_the_writer_needs_only_something_to_write_to():
    tokens, lengths, ends = io.BytesIO(), io.BytesIO(), io.BytesIO()
    writer = TokenWriter(tokens, lengths, ends)
    writer.add(encoded([[[1, 258]]], np.dtype("<u2")))
    assert tokens.getvalue() == b"\x01\x00\x02\x01"
    assert writer.written == (1, 1, 2)


class TestManyTokens:
    """Nothing is counted in 32 bits."""

    PARTS = (
        IndexPart(np.full(700, 2**22 - 1, np.int32), np.arange(1, 701, dtype=np.int64)),
        IndexPart(np.full(600, 2**22 + 1, np.int32), np.arange(2, 602, 2, dtype=np.int64)),
    )

    def test_offsets_beyond_2_to_the_31_are_megatrons(self, bridged, tmp_path):
        from megatron.core.datasets.indexed_dataset import _IndexWriter

        with (tmp_path / "ours.idx").open("wb") as stream:
            write_index(stream, np.dtype("<i4"), self.PARTS)
        lengths = [length for part in self.PARTS for length in part.lengths.tolist()]
        assert sum(lengths) > 2**32
        ends = [0, *self.PARTS[0].document_ends.tolist(), *(700 + self.PARTS[1].document_ends).tolist()]
        with _IndexWriter(str(tmp_path / "megatrons.idx"), np.int32) as writer:
            writer.write(lengths, None, ends)
        assert (tmp_path / "ours.idx").read_bytes() == (tmp_path / "megatrons.idx").read_bytes()

    def test_a_file_of_so_many_is_read(self, tmp_path):
        with idx_path(tmp_path / "p").open("wb") as stream:
            write_index(stream, np.dtype("<i4"), self.PARTS)
        tokens = sum(int(part.lengths.sum(dtype=np.int64)) for part in self.PARTS)
        with bin_path(tmp_path / "p").open("wb") as stream:
            stream.truncate(4 * tokens)  # sparse: it takes no room
        found = TokenFile.open(tmp_path / "p")
        found.check_order()
        assert found.tokens.size == tokens > 2**32
        assert int(found.document_lengths().sum()) == tokens


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts this process's descriptors, which needs /proc")
def test_files_that_are_mapped_are_not_kept_open(tmp_path):
    prefixes = [tmp_path / str(number) for number in range(20)]
    for number, prefix in enumerate(prefixes):
        write(prefix, [[[number, 2, 3]], [[4]]])
    before = len(list(Path("/proc/self/fd").iterdir()))
    files = [TokenFile.open(prefix) for prefix in prefixes]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert [file.tokens.tolist() for file in files] == [[number, 2, 3, 4] for number in range(20)]
    tokens = files[7].tokens
    del files
    gc.collect()
    assert tokens.tolist() == [7, 2, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    mappings = Path("/proc/self/maps").read_text()
    assert mappings.count(f"{tmp_path}/7.bin") == 1
    assert f"{tmp_path}/8.bin" not in mappings


def test_what_is_looked_into_in_threads_keeps_its_order_and_its_error():
    assert list(for_each(range(100), lambda number: number * number)) == [number * number for number in range(100)]
    with pytest.raises(ZeroDivisionError):
        list(for_each([1, 0, 2], lambda number: 1 // number))
