"""Lines and files that are broken in any way give counts or a clear error, never a wrong file."""

import bz2
import gzip
import json
import lzma
import random
from functools import partial

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from pretrain.data.token_files.reading import TokenFile
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import chunks, documents
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.unfinished import folder_of

SECTION = TokenizerSection(type="bytes")


def megatrons_reading(line):
    """Return the sentences that Megatron-LM's tool would read, by Python's own JSON; None where it would stop."""
    try:
        text = json.loads(line.decode())["text"]
        sentences = text if isinstance(text, list) else [text]
        return [sentence.encode() for sentence in sentences]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def expected(content):
    """Return the documents of a file and the numbers of the lines that are none."""
    found = [(number, megatrons_reading(line)) for number, line in enumerate(content.split(b"\n"), 1) if line.strip()]
    return [texts for _, texts in found if texts is not None], [number for number, texts in found if texts is None]


def test_only_the_first_faults_line_is_looked_up(tmp_path, monkeypatch):
    """To know its number the file is read up to there."""
    looked = []

    def where(chunk, number=0, found=documents.where):
        looked.append(chunk.begin)
        return found(chunk, number)

    monkeypatch.setattr(documents, "where", where)
    monkeypatch.setattr("pretrain.tools.corpus.build.where", where)
    monkeypatch.setattr("pretrain.tools.corpus.build.read_chunks", partial(chunks.read_chunks, chunk_bytes=100))
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"text": "good"}\nbad\n' * 500)
    built = build_tokens([corpus], tmp_path / "p", SECTION, skip_faults=True)
    assert built.counts.faults == 500
    assert len(looked) == 1


def check(folder, content):
    """Build with and without skipping; compare with what Megatron-LM's tool would read."""
    path, prefix = folder / "c.jsonl", folder / "p"
    path.write_bytes(content)
    texts, bad = expected(content)
    tokens = [token for document in texts for sentence in document for token in sentence]
    if bad:
        with pytest.raises(DataError) as caught:
            build_tokens([path], prefix, SECTION)
        assert str(caught.value).startswith(f"{path}:{bad[0]}: ")
        assert len(str(caught.value).splitlines()) <= 3
        assert not prefix.with_name("p.idx").exists()
    if not tokens:
        with pytest.raises(DataError, match="no text found"):
            build_tokens([path], prefix, SECTION, skip_faults=True)
        return
    built = build_tokens([path], prefix, SECTION, skip_faults=True, force=True)
    assert (built.documents, built.counts.faults) == (len(texts), len(bad))
    if bad:
        assert built.counts.first_fault.startswith(f"{path}:{bad[0]}: ")
    assert TokenFile.open(prefix).tokens.tolist() == tokens
    assert not folder_of(prefix).exists()


GOOD = json.dumps({"id": 7, "text": 'Once "upon" \u00e9 \U0001f600\n a time', "meta": {"a": [1, None, 2.5e3]}}).encode()
PIECES = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b",",
        b'"',
        b"\\",
        b"\\u",
        b"\\ud800",
        b"\\udc00",
        b"\xff",
        b"\xc3",
        b"\xed\xa0\x80",
    ),
    *(b"\x00", b"\n", b"\r", b"\t", b" ", b"\xef\xbb\xbf", b"NaN", b"-Infinity", b"null", b"true", b"1e999", b"01"),
    *(b'"text"', b'"text":', b'"text":null', b'"text":["a","b"]', b'"text":"b"', b'"text":[]', b'"text":{}', b"'text'"),
    *(b'{"text":"a"}', b'{"text":""}', b'{"text":["a",1]}', b"[" * 2000, b"9" * 5000),
)


def broken(source):
    """Return a line that was cut, or in which pieces were replaced or repeated, or one made of pieces."""
    if source.random() < 0.1:
        return b"".join(source.choices(PIECES, k=source.randrange(1, 8)))
    line = GOOD
    for _ in range(source.randrange(1, 4)):
        begin = source.randrange(len(line) + 1)
        end = min(len(line), begin + source.choice((0, 1, 2, 9, 200)))
        line = line[:begin] + source.choice((b"", b"", *PIECES)) + line[end:]
    return line


@given(st.lists(st.one_of(st.just(GOOD), st.binary(max_size=30), st.sampled_from(PIECES)), max_size=8))
def test_any_bytes(tmp_path_factory, lines):
    check(tmp_path_factory.mktemp("any"), b"\n".join(lines))


@pytest.mark.parametrize("seed", range(20))
def test_ten_thousand_broken_lines(tmp_path, seed):
    """Five hundred for each of twenty seeds, of which some files have one fault and some are full of them."""
    source = random.Random(seed)
    for number in range(10):
        lines = [broken(source) for _ in range(50)]
        lines += [GOOD] * source.choice((0, 5, 50))
        source.shuffle(lines)
        folder = tmp_path / str(number)
        folder.mkdir()
        check(folder, source.choice((b"\n", b"\r\n")).join(lines))


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("suffix", "pack", "magic"),
    [
        (".gz", gzip.compress, 3),
        (".xz", lzma.compress, 6),
        (".bz2", bz2.compress, 3),
        (".zst", zstandard.compress, 4),
    ],
)
class TestPackedFiles:
    def check(self, folder, suffix, compressed):
        path = folder / f"c.jsonl{suffix}"
        path.write_bytes(compressed)
        with pytest.raises(DataError, match="cannot be decompressed"):
            build_tokens([path], folder / "p", SECTION, skip_faults=True)

    @pytest.mark.full
    def test_one_that_is_cut_anywhere(self, tmp_path, suffix, pack, magic):
        compressed = pack(b"".join(b'{"text": "%d"}\n' % number for number in range(200)))
        for length in range(len(compressed)):
            self.check(tmp_path, suffix, compressed[:length])
            assert not folder_of(tmp_path / "p").exists()

    def test_one_of_two_parts_whose_second_is_damaged_or_cut(self, tmp_path, suffix, pack, magic):
        """`cat` and pbzip2 make such files."""
        first, second = pack(GOOD + b"\n"), pack(GOOD * 9)
        for place in range(magic):
            self.check(tmp_path, suffix, first + flipped(second, place))
        for length in range(1, len(second)):
            self.check(tmp_path, suffix, first + second[:length])


class TestLongDocuments:
    @pytest.fixture(autouse=True)
    def _short(self, monkeypatch):
        for module in (chunks, documents):
            monkeypatch.setattr(module, "LONGEST_DOCUMENT", 1000)

    @given(sizes=st.lists(st.integers(0, 2500), min_size=1, max_size=8), chunk_bytes=st.integers(1, 3000))
    def test_are_left_out_and_those_around_them_are_not(self, tmp_path_factory, sizes, chunk_bytes):
        path = tmp_path_factory.mktemp("long") / "c.jsonl"
        lines = [b'{"text": "%s"}' % (b"x" * size) for size in sizes]
        path.write_bytes(b"\n".join(lines))
        from pretrain.tools.corpus.inputs import find_sources

        read = list(chunks.read_chunks(find_sources([path]), "text", chunk_bytes=chunk_bytes))
        found = [documents.read_documents(chunk, "text", skip=True) for chunk in read]
        texts = [text for part, _ in found for (text,) in part]
        faults = [(chunk, fault) for chunk, (_, fault) in zip(read, found, strict=True) if fault.count]
        # A line is as long as its newline makes it; one at the limit may be called too long where it is cut.
        assert {"x" * size for line, size in zip(lines, sizes, strict=True) if len(line) < 999} <= set(texts)
        assert all(len(text) <= 1000 for text in texts)
        assert len(texts) + sum(fault.count for _, fault in faults) == len(lines)
        numbers = [int(documents.where(chunk, fault.first[0]).split(":")[1]) for chunk, fault in faults]
        assert all(len(lines[number - 1]) >= 999 for number in numbers)

    def test_a_text_file(self, tmp_path):
        (tmp_path / "a.txt").write_text("x" * 1001)
        with pytest.raises(DataError, match=r"a\.txt:1: the document is longer than"):
            build_tokens([tmp_path / "a.txt"], tmp_path / "p", SECTION)
