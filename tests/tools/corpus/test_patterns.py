"""Patterns and comma lists, and that a build beside its inputs does not read what it writes."""

import os
from pathlib import Path

import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.errors import DataError
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.inputs import Shard, expand, find_sources


class Crash(BaseException):
    """Not an error that anything handles."""


@pytest.fixture
def folder(tmp_path):
    """A folder of two files of lines."""
    (tmp_path / "in").mkdir()
    write_jsonl(tmp_path / "in" / "a.jsonl", DOCUMENTS[:150])
    write_jsonl(tmp_path / "in" / "z.jsonl", DOCUMENTS[150:])
    return tmp_path / "in"


@pytest.fixture
def build(bytes_section):
    """Build, or with `stopped` be killed after the first chunk that is written."""

    def build(inputs, prefix, *, stopped=False, **options):
        def progress(_):
            if stopped:
                raise Crash

        build_tokens([Path(inputs)], prefix, bytes_section, progress=progress, **options)

    return build


def content(prefix):
    return [path(prefix).read_bytes() for path in (bin_path, idx_path)]


def names(pattern, **options):
    return [path.name for path in expand(Path(pattern), **options)]


@pytest.mark.parametrize("pattern", ["*", "**/*.*", "[ao-z]*"])
class TestABuildBesideItsInputs:
    def test_continues_after_a_kill(self, folder, tmp_path, build, pattern):
        build(folder / "*.jsonl", tmp_path / "whole")
        with pytest.raises(Crash):
            build(folder / pattern, folder / "out", stopped=True)
        assert (folder / "out.partial" / "tokens").stat().st_size
        build(folder / pattern, folder / "out")
        assert content(folder / "out") == content(tmp_path / "whole")

    def test_continues_after_a_kill_between_two_renames(self, folder, tmp_path, build, pattern, monkeypatch):
        def crash(*_):
            raise Crash

        build(folder / "*.jsonl", tmp_path / "whole")
        with monkeypatch.context() as patch:
            patch.setattr("pretrain.tools.corpus.build.write_stamp", crash)
            with pytest.raises(Crash):
                build(folder / pattern, folder / "out")
        assert bin_path(folder / "out").exists()
        assert not idx_path(folder / "out").exists()
        build(folder / pattern, folder / "out")
        assert content(folder / "out") == content(tmp_path / "whole")

    def test_does_not_read_its_own_files_when_it_is_forced(self, folder, tmp_path, build, pattern):
        build(folder / "*.jsonl", tmp_path / "whole")
        for _ in range(2):
            build(folder / pattern, folder / "out", force=True)
            assert content(folder / "out") == content(tmp_path / "whole")

    def test_does_not_read_those_of_other_shards(self, folder, tmp_path, build, pattern):
        build(folder / "*.jsonl", tmp_path / "out-00001-of-00003", shard=Shard(1, 3))
        build(folder / pattern, folder / "out-00000-of-00003", shard=Shard(0, 3))
        with pytest.raises(Crash):
            build(folder / pattern, folder / "out-00002-of-00003", shard=Shard(2, 3), stopped=True)
        build(folder / pattern, folder / "out-00001-of-00003", shard=Shard(1, 3))
        assert content(folder / "out-00001-of-00003") == content(tmp_path / "out-00001-of-00003")


@pytest.mark.parametrize("files", [["lock"], ["state.json", "other"], ["tokens", "lengths"], []])
def test_an_unfinished_build_is_left_out_also_while_its_folder_is_made_or_removed(folder, files):
    (folder / "p.partial").mkdir()
    for name in files:
        (folder / "p.partial" / name).touch()
    assert names(folder / "*") == ["a.jsonl", "z.jsonl"]


def test_a_folder_that_disappears_meanwhile_was_an_unfinished_build(folder, monkeypatch):
    (folder / "p.partial").mkdir()

    def listdir(path):
        (folder / "p.partial").rmdir()
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "listdir", listdir)
    assert names(folder / "*") == ["a.jsonl", "z.jsonl"]


def test_files_that_only_resemble_a_builds_are_read(folder):
    (folder / "b.partial").mkdir()
    (folder / "b.partial" / "text").touch()
    for name in ("c.bin", "d.idx", "e.tokenizer.json", "f.partial"):
        (folder / name).touch()
    (folder / "g.partial").symlink_to("nowhere")
    assert names(folder / "[b-g]*") == sorted(path.name for path in folder.iterdir())[1:-1]


@pytest.mark.parametrize("pattern", ["**", "**/*", "*"])
def test_a_file_is_read_once_also_if_its_folder_is_found_too(folder, pattern):
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("b.jsonl", "deep/c.jsonl"):
        (folder / "sub" / name).touch()
    found = [source.path.name for source in find_sources([folder / pattern])]
    assert found == ["a.jsonl", "b.jsonl", "c.jsonl", "z.jsonl"]


def test_named_files_are_read(folder):
    for name in ("out.bin", "out.idx", "out.tokenizer.json"):
        (folder / name).touch()
    (folder / "out.partial").mkdir()
    (folder / "out.partial" / "state.json").touch()
    assert names(folder / "out.bin") == ["out.bin"]
    assert names(folder / "out.partial") == ["out.partial"]
    assert [source.path.name for source in find_sources([folder])][1:] == [
        *("out.bin", "out.idx", "state.json", "out.tokenizer.json"),
        "z.jsonl",
    ]


def test_a_pattern_that_finds_only_what_builds_have_written_says_so(folder, build):
    build(folder / "a.jsonl", folder / "out")
    with pytest.raises(DataError, match="as a pattern it matches only the output of builds"):
        names(folder / "out*")


@pytest.mark.parametrize(
    ("pattern", "output"), [("*", "new/p"), ("*/*", "new/er/p"), ("**/*.jsonl", "new/p"), ("n[de]w", "new/p")]
)
def test_the_output_may_not_be_where_a_pattern_will_find_its_folder(folder, build, pattern, output):
    """Otherwise the same command could not continue the build."""
    (folder / "sub").mkdir()
    write_jsonl(folder / "sub" / "c.jsonl", ["c"])
    (folder / "ndw").mkdir()
    with pytest.raises(DataError, match=r"would be in .*new.*, which .* matches\.\nGive an --output-prefix outside"):
        build(folder / pattern, folder / output)
    assert not (folder / "new").exists()


@pytest.mark.parametrize(("pattern", "output"), [("*", ".new/p"), ("*.jsonl", "new/p"), ("*", "../new/p")])
def test_it_may_be_where_none_will(folder, build, pattern, output):
    build(folder / pattern, folder / output)
    assert idx_path(folder / output).exists()
