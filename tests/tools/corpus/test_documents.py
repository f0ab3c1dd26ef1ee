"""JSONL is read in chunks of whole lines, and a malformed line is named."""

import bz2
import gzip
import json
import lzma

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import DataError
from pretrain.tools.corpus.chunks import Chunk, read_chunks
from pretrain.tools.corpus.documents import read_documents, read_texts, where
from pretrain.tools.corpus.inputs import find_sources

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=20)


def chunks_of(path, chunk_bytes=1 << 20):
    return list(read_chunks(find_sources([path]), "text", chunk_bytes=chunk_bytes))


def documents_in(path, chunk_bytes=1 << 20):
    return [document for chunk in chunks_of(path, chunk_bytes) for document in read_documents(chunk, "text")[0]]


def error_in(path, content):
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        documents_in(path)
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


@given(documents=texts, chunk_bytes=st.integers(1, 60), ascii_only=st.booleans())
def test_documents_do_not_depend_on_how_the_file_is_cut(tmp_path_factory, documents, chunk_bytes, ascii_only):
    path = tmp_path_factory.mktemp("jsonl") / "a.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text}, ensure_ascii=ascii_only) + "\n" for text in documents), newline="\n"
    )
    assert documents_in(path, chunk_bytes) == [[text] for text in documents]


def test_every_chunk_knows_its_first_line_and_how_far_the_file_is_read(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 5)
    chunks = chunks_of(path, chunk_bytes=20)
    assert [(where(chunk), chunk.position) for chunk in chunks] == [
        (f"{path}:{line}", read) for line, read in ((1, 28), (3, 56), (5, 70))
    ]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress), (".zst", zstandard.compress)],
)
class TestPacked:
    def test_is_decompressed(self, tmp_path, suffix, pack):
        path = tmp_path / f"a.jsonl{suffix}"
        path.write_bytes(pack(b'{"text": "a"}\n{"text": "b"}\n'))
        assert documents_in(path) == [["a"], ["b"]]
        assert list(read_texts([path], "text")) == ["a", "b"]

    def test_files_put_one_after_the_other_are_read_as_one(self, tmp_path, suffix, pack):
        path = tmp_path / f"a.jsonl{suffix}"
        parts = [b"".join(b'{"text": "%d"}\n' % number for number in range(k, 1500, 3)) for k in range(3)]
        path.write_bytes(b"".join(pack(part) for part in (parts[0], b"", parts[1][:-9], parts[1][-9:], parts[2])))
        assert [text for (text,) in documents_in(path)] == [str(n) for k in range(3) for n in range(k, 1500, 3)]

    def test_remaining_bits_of_a_compressed_byte_are_kept(self, tmp_path, suffix, pack):
        """A few compressed bytes become more than one call may return."""
        path = tmp_path / f"a.jsonl{suffix}"
        path.write_bytes(pack(b'{"text": "%s"}\n' % (b"a" * 5_000_000)) * 2)
        assert documents_in(path, chunk_bytes=1000) == [["a" * 5_000_000]] * 2

    def test_a_file_that_is_cut_off_is_named(self, tmp_path, suffix, pack):
        whole = pack(b'{"text": "a"}\n' * 100)
        assert f"a.jsonl{suffix} cannot be decompressed" in error_in(tmp_path / f"a.jsonl{suffix}", whole[:-12])

    def test_a_file_that_is_not_compressed_is_named(self, tmp_path, suffix, pack):
        assert f"a.jsonl{suffix} cannot be " in error_in(tmp_path / f"a.jsonl{suffix}", b'{"text": "a"}\n' * 9)


class TestPaddingOfXz:
    """Zeros, four at a time, between the streams of a file and behind them."""

    @pytest.mark.parametrize("count", [4, 1 << 17])
    def test_is_skipped(self, tmp_path, count):
        path = tmp_path / "a.jsonl.xz"
        stream, zeros = lzma.compress(b'{"text": "a"}\n'), bytes(count)
        path.write_bytes(stream + zeros + stream + zeros)
        assert documents_in(path) == [["a"], ["a"]]

    @pytest.mark.parametrize("count", [1, 3, 6, (1 << 17) + 2])
    @pytest.mark.parametrize("after", [b"", lzma.compress(b"")])
    def test_of_another_length_is_damage(self, tmp_path, count, after):
        whole = lzma.compress(b'{"text": "a"}\n')
        assert f"{count} zeros after a frame" in error_in(tmp_path / "a.jsonl.xz", whole + bytes(count) + after)


def test_empty_lines_and_windows_line_ends_are_allowed(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n{"text": "a"}\r\n\r\n{"text": "b"}')
    assert documents_in(path) == [["a"], ["b"]]


def test_a_list_of_strings_is_one_document_of_sentences():
    assert read_documents(Chunk("a", 1, b'{"text": ["x", "y"]}', 0), "text")[0] == [["x", "y"]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{'text': 'a'}", "not JSON"),
        (b'{"text": "a"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"txt": "a"}', "no key 'text'; the line has the keys 'txt'"),
        (b'["a"]', "no key 'text'; the line has ['a']"),
        (b'{"text": 7}', "'text' is 7; it must be a string"),
        (b'{"text": ["a", null]}', "it must be a string, or a list of strings"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b'{"text": "a \\ud800 b"}', "half of a surrogate pair"),
    ],
)
def test_a_malformed_line_is_named_by_file_and_number(tmp_path, line, message):
    error = error_in(tmp_path / "a.jsonl", b'{"text": "fine"}\n\n' + line + b"\n")
    assert error.startswith(f"{tmp_path / 'a.jsonl'}:3: ")
    assert message in error


def test_a_whole_surrogate_pair_is_a_character(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "\\ud83d\\ude00"}\n')
    assert documents_in(path) == [["\U0001f600"]]


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl does not exist, and as a pattern it matches no file"):
        find_sources([tmp_path / "none.jsonl"])


def test_other_files_are_read_as_text(tmp_path):
    (tmp_path / "a.txt").write_text("plain\ntext\n")
    (tmp_path / "b.jsonl").write_text('{"text": "lines"}\n')
    assert list(read_texts([tmp_path / "a.txt", tmp_path / "b.jsonl"], "text")) == ["plain\ntext\n", "lines"]
