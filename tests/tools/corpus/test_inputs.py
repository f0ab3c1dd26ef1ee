"""Inputs of a build: their names, the order in which they are read, and shards."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.chunks import read_chunks
from pretrain.tools.corpus.documents import read_documents
from pretrain.tools.corpus.inputs import Shard, find_sources
from pretrain.tools.corpus.merging import merge_tokens


def texts(inputs, key="text", **options):
    chunks = read_chunks(find_sources(inputs, **options), key)
    return [document[0] for chunk in chunks for document in read_documents(chunk, key)[0]]


@pytest.fixture
def folder(tmp_path):
    """A folder of texts, JSONL and what is left out."""
    (tmp_path / "f" / "sub").mkdir(parents=True)
    (tmp_path / "f" / ".git").mkdir()
    write_jsonl(tmp_path / "f" / "b.jsonl", ["b1", "b2"])
    for name in ("a.txt", "sub/c.md", "sub/d.py", ".hidden", ".git/x.txt"):
        (tmp_path / "f" / name).write_text(f"{name}\nsecond line")
    return tmp_path / "f"


class TestNames:
    def test_a_folder_is_read_in_the_order_of_its_names(self, folder):
        assert texts([folder]) == [
            "a.txt\nsecond line",
            *("b1", "b2"),
            "sub/c.md\nsecond line",
            "sub/d.py\nsecond line",
        ]

    def test_patterns_and_comma_lists(self, tmp_path):
        for name in "cab":
            write_jsonl(tmp_path / f"{name}.jsonl", [name])
        assert texts([tmp_path / "*.jsonl"]) == ["a", "b", "c"]
        assert texts([Path(f"{tmp_path}/c.jsonl,{tmp_path}/[ab].jsonl"), tmp_path / "c.jsonl"]) == ["c", "a", "b", "c"]
        assert texts([Path(",".join([f"{tmp_path}/a.jsonl"] * 200))]) == ["a"] * 200

    def test_a_file_whose_name_has_a_comma(self, tmp_path):
        assert texts([write_jsonl(tmp_path / "a,b.jsonl", ["one"])]) == ["one"]

    @pytest.mark.parametrize("shard", [None, Shard(0, 1)])
    def test_a_file_whose_name_is_not_utf8(self, tmp_path, bytes_section, shard):
        name = os.fsdecode(b"\xff.jsonl")
        corpus = write_jsonl(tmp_path / name, ["one"])
        assert build_tokens([corpus], tmp_path / "p", bytes_section, shard=shard).documents == 1

    @pytest.mark.parametrize("name", ["none.jsonl", "none-*.jsonl"])
    def test_missing_inputs_are_named(self, tmp_path, name):
        corpus = write_jsonl(tmp_path / "c.jsonl", ["a"])
        with pytest.raises(DataError, match="does not exist, and as a pattern it matches no file"):
            find_sources([Path(f"{corpus},{tmp_path / name}")])

    def test_a_pipe_is_refused(self, tmp_path):
        """Its size is 0, so it would be read as an empty file."""
        corpus = write_jsonl(tmp_path / "c.jsonl", ["a"])
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(DataError, match=r"pipe\.jsonl is a pipe or a device.*\nWrite .* to a file first"):
            find_sources([corpus, tmp_path / "pipe.jsonl"])

    def test_a_pipe_or_a_dead_link_in_a_folder_is_an_error(self, tmp_path):
        write_jsonl(tmp_path / "c.jsonl", ["a"])
        (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere")
        with pytest.raises(DataError, match=r"link\.jsonl .* is a link to .*, which is not there\.\nRemove"):
            find_sources([tmp_path])
        (tmp_path / "link.jsonl").unlink()
        os.mkfifo(tmp_path / "pipe.jsonl")
        with pytest.raises(DataError, match=r"pipe\.jsonl is a pipe or a device"):
            find_sources([tmp_path])

    def test_links_to_folders_are_followed_and_loops_end(self, folder, tmp_path):
        (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
        (tmp_path / "elsewhere" / "deep" / "e.txt").write_text("e")
        (tmp_path / "elsewhere" / "back").symlink_to(folder)
        (folder / "aa").symlink_to(tmp_path / "elsewhere")
        (folder / "sub" / "up").symlink_to(folder)
        (folder / "sub" / "here").symlink_to(".")
        (folder / ".link").symlink_to(tmp_path / "elsewhere")
        names = [str(source.path.relative_to(folder)) for source in find_sources([folder])]
        assert names == ["a.txt", "aa/deep/e.txt", "b.jsonl", "sub/c.md", "sub/d.py"]

    def test_a_folder_that_has_two_names_is_read_under_both_as_a_file_is(self, tmp_path):
        (tmp_path / "in" / "b").mkdir(parents=True)
        (tmp_path / "in" / "b" / "x.txt").write_text("x")
        (tmp_path / "in" / "a").symlink_to("b")
        assert texts([tmp_path / "in"]) == ["x", "x"]

    def test_a_folder_that_cannot_be_read_is_an_error(self, folder, monkeypatch):
        """As root, for whom every folder can be read, it is made up."""

        def scandir(path, usual=os.scandir):
            if Path(path) == folder / "sub":
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return usual(path)

        monkeypatch.setattr(os, "scandir", scandir)
        with pytest.raises(DataError, match=r"f/sub cannot be read: Permission denied"):
            find_sources([folder])

    def test_a_link_to_itself_in_a_folder_is_named(self, folder):
        (folder / "sub" / "self").symlink_to("self")
        with pytest.raises(DataError, match=r"sub/self cannot be read: Too many levels of symbolic links"):
            find_sources([folder])

    def test_a_shells_substitution_is_refused(self):
        reading, writing = os.pipe()
        try:
            with pytest.raises(DataError, match=f"/dev/fd/{reading} is a pipe or a device"):
                find_sources([Path(f"/dev/fd/{reading}")])
        finally:
            os.close(reading)
            os.close(writing)

    def test_an_empty_folder_is_named(self, tmp_path):
        with pytest.raises(DataError, match="no file found"):
            find_sources([tmp_path])


class TestTheOutputIsNoInput:
    """Else a build that is continued would find files that were not there, and read its own tokens as a text."""

    @pytest.mark.parametrize("output", ["p", "sub/p", "new/p"])
    @pytest.mark.parametrize("force", [False, True])
    def test_it_may_not_be_below_a_folder_that_is_read(self, folder, bytes_section, output, force):
        before = sorted(folder.rglob("*"))
        with pytest.raises(DataError, match=r"would be in the input folder .*\.\nGive an --output-prefix outside"):
            build_tokens([folder], folder / output, bytes_section, force=force)
        assert sorted(folder.rglob("*")) == before

    def test_with_any_name_of_the_folder(self, folder, bytes_section, monkeypatch):
        monkeypatch.chdir(folder / "sub")
        (folder.parent / "link").symlink_to(folder)
        for named in (Path(".."), folder.parent / "[f]", Path(f"c.md,{folder.parent / 'link'}")):
            with pytest.raises(DataError, match="in the input folder"):
                build_tokens([named], Path("p"), bytes_section)

    def test_nor_behind_a_link_in_such_a_folder(self, folder, tmp_path, bytes_section):
        (tmp_path / "elsewhere").mkdir()
        (folder / "sub" / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(DataError, match=r"would be in the input folder .*f/sub/link\."):
            build_tokens([folder], tmp_path / "elsewhere" / "new" / "p", bytes_section)

    def test_it_may_be_beside_the_files_that_are_read(self, tmp_path, corpus, bytes_section):
        assert build_tokens([corpus], tmp_path / "p", bytes_section).documents == len(DOCUMENTS)


pa = pytest.importorskip("pyarrow")


class TestTables:
    def parquet(self, path, values, column="text"):
        from pyarrow import parquet

        parquet.write_table(pa.table({"id": list(range(len(values))), column: values}), path, row_group_size=70)
        return path

    def dataset(self, folder, parts):
        """The output of Hugging Face's `save_to_disk`."""
        folder.mkdir(parents=True)
        names = [f"data-{number:05}-of-{len(parts):05}.arrow" for number in range(len(parts))]
        for name, values in zip(names, parts, strict=True):
            table = pa.table({"text": values})
            with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table, max_chunksize=40)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
        (folder / "dataset_info.json").write_text("{}")
        return folder

    def test_parquet(self, tmp_path):
        assert texts([self.parquet(tmp_path / "a.parquet", DOCUMENTS)]) == DOCUMENTS
        assert texts([self.parquet(tmp_path / "b.parquet", DOCUMENTS, "body")], key="body") == DOCUMENTS

    def test_a_dataset_of_hugging_face(self, tmp_path):
        assert texts([self.dataset(tmp_path / "d", [DOCUMENTS[:130], DOCUMENTS[130:]])]) == DOCUMENTS

    def test_one_of_several_splits_must_be_named(self, tmp_path):
        self.dataset(tmp_path / "d" / "train", [["a"]])
        self.dataset(tmp_path / "d" / "test", [["b"]])
        (tmp_path / "d" / "dataset_dict.json").write_text("{}")
        with pytest.raises(DataError, match="several splits of a dataset: test, train"):
            find_sources([tmp_path / "d"])
        assert texts([tmp_path / "d" / "test"]) == ["b"]

    def test_a_dataset_whose_splits_are_missing_is_named(self, tmp_path):
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "dataset_dict.json").write_text('{"splits": ["train"]}')
        with pytest.raises(DataError, match=r"/d has the dataset_dict\.json of a dataset, but none of its splits"):
            find_sources([tmp_path / "d"])

    def test_reading_continues_at_a_row(self, tmp_path):
        sources = find_sources([self.parquet(tmp_path / "a.parquet", DOCUMENTS)])
        chunks = list(read_chunks(sources, "text", chunk_bytes=3000))
        assert len(chunks) > 10
        for number in (0, 3, len(chunks) - 1):
            rest = list(read_chunks(sources, "text", chunks[number].next, chunk_bytes=3000))
            read = [row for chunk in rest for row in chunk.content]
            assert read == [row for chunk in chunks[number + 1 :] for row in chunk.content]

    @pytest.mark.parametrize(
        ("values", "message"), [([["a", None]], "must be a string"), (["a", None], "'text' is None"), ([1], "is 1;")]
    )
    def test_a_row_without_text_is_named(self, tmp_path, values, message):
        path = self.parquet(tmp_path / "a.parquet", values)
        with pytest.raises(DataError, match=rf"a\.parquet:{len(values)}: .*{message}"):
            texts([path])

    def test_a_row_that_is_not_utf8_is_named(self, tmp_path):
        path = self.parquet(tmp_path / "a.parquet", pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string()))
        with pytest.raises(DataError, match=r"a\.parquet:2: not UTF-8"):
            texts([path])

    def test_a_column_that_is_missing_is_named_with_those_there_are(self, tmp_path):
        with pytest.raises(DataError, match=r"no column 'body'; it has 'id', 'text'"):
            texts([self.parquet(tmp_path / "a.parquet", ["a"])], key="body")

    @pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
    def test_a_file_of_something_else_is_named(self, tmp_path, name):
        (tmp_path / name).write_text("text" * 100)
        with pytest.raises(DataError, match=rf"{name} cannot be read as {name[2:]}"):
            texts([tmp_path / name])

    def test_without_pyarrow_it_says_what_to_install(self, tmp_path, monkeypatch):
        path = self.parquet(tmp_path / "a.parquet", ["a"])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(DataError, match=r"pip install 'pretrain\[data\]'"):
            texts([path])


class TestShards:
    @given(data=st.data())
    def test_one_after_the_other_they_are_the_corpus(self, tmp_path_factory, data):
        folder = tmp_path_factory.mktemp("shards")
        documents = st.lists(st.text("ab\u00e9\n", max_size=12), max_size=12)
        names = [f"{number}.jsonl" for number in range(data.draw(st.integers(1, 3)))]
        inputs = [write_jsonl(folder / name, data.draw(documents)) for name in names]
        for number in range(data.draw(st.integers(0, 2))):
            inputs.append(folder / f"{number}.txt")
            inputs[-1].write_text(data.draw(st.text("xy\n", max_size=30)))
        sources = find_sources(inputs)
        count = data.draw(st.integers(1, 7))
        parts = [Shard(number, count).of(sources) for number in range(count)]
        chunk_bytes = data.draw(st.integers(1, 50))
        shards = [[*read_chunks(part, "text", chunk_bytes=chunk_bytes)] for part in parts]
        found = [read_documents(chunk, "text")[0] for shard in shards for chunk in shard]
        assert [text for texts in found for (text,) in texts] == texts(inputs)

    def test_they_are_about_equal(self, tmp_path):
        (source,) = find_sources([write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)])
        sizes = [sum(chunk.size for chunk in read_chunks(Shard(number, 4).of([source]), "text")) for number in range(4)]
        assert sum(sizes) == source.size
        assert max(sizes) - min(sizes) < 2000

    def test_a_malformed_line_is_named_by_its_number_in_the_file(self, tmp_path):
        corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
        with corpus.open("a") as stream:
            stream.write("oops\n")
        chunks = read_chunks(Shard(2, 3).of(find_sources([corpus])), "text")
        with pytest.raises(DataError, match=r"c\.jsonl:301: not JSON"):
            [read_documents(chunk, "text") for chunk in chunks]

    @pytest.mark.parametrize("given_", ["", "1", "4/4", "-1/4", "1/0", "a/b", "1/100000", "0/4/2", "\u0661/4"])
    def test_a_file_that_is_not_a_shard_is_named(self, given_):
        with pytest.raises(DataError, match="It must be I/N"):
            Shard.parse(given_)

    def test_four_merged_are_one_build(self, tmp_path, bytes_section):
        corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
        build_tokens([corpus], tmp_path / "whole", bytes_section, append_eod=True)
        prefixes = []
        for number in range(4):
            shard = Shard(number, 4)
            prefixes.append(tmp_path / f"p{shard.suffix}")
            build_tokens([corpus], prefixes[-1], bytes_section, append_eod=True, shard=shard)
        merge_tokens(prefixes, tmp_path / "merged")
        for path in (bin_path, idx_path):
            assert path(tmp_path / "merged").read_bytes() == path(tmp_path / "whole").read_bytes()
        for wrong in ([prefixes[0], *prefixes[2:]], prefixes[::-1], [*prefixes, tmp_path / "whole"]):
            with pytest.raises(DataError, match="Merge all shards in order"):
                merge_tokens(wrong, tmp_path / "wrong")

    def test_more_shards_than_documents(self, tmp_path, bytes_section):
        corpus = write_jsonl(tmp_path / "c.jsonl", ["a", "b"])
        prefixes = [tmp_path / f"p{Shard(number, 5).suffix}" for number in range(5)]
        for number, prefix in enumerate(prefixes):
            build_tokens([corpus], prefix, bytes_section, shard=Shard(number, 5))
        assert merge_tokens(prefixes, tmp_path / "merged").documents == 2

    def test_duplicates_cannot_be_found_in_shards(self, tmp_path, corpus, bytes_section):
        from pretrain.tools.corpus.documents import Cleaning

        with pytest.raises(DataError, match="--drop-duplicates needs all documents"):
            build_tokens(
                [corpus], tmp_path / "p", bytes_section, shard=Shard(0, 2), cleaning=Cleaning(drop_duplicates=True)
            )
