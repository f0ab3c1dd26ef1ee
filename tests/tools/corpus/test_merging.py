"""`pretrain data merge`: the files of one build over all inputs."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import TokenFile, bin_path, idx_path
from pretrain.data.token_files.tokenizer_stamp import stamp_path
from pretrain.data.token_files.writing import IndexPart, write_index
from pretrain.errors import DataError
from pretrain.tools.corpus import merging
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.documents import Cleaning
from pretrain.tools.corpus.inputs import Shard
from pretrain.tools.corpus.merging import merge_tokens


@pytest.fixture
def parts(tmp_path, bytes_section):
    """Token files of three parts of the corpus."""
    prefixes = []
    for number in range(3):
        corpus = write_jsonl(tmp_path / f"{number}.jsonl", [*DOCUMENTS[number::3], "", ["two", "sentences"]])
        build_tokens([corpus], tmp_path / f"part{number}", bytes_section, append_eod=True)
        prefixes.append(tmp_path / f"part{number}")
    return prefixes


def test_equals_a_build_over_all_inputs(tmp_path, parts, bytes_section, monkeypatch):
    monkeypatch.setattr("pretrain.tools.corpus.merging._COPIED_AT_ONCE", 1000)
    merged = merge_tokens(parts, tmp_path / "merged")
    inputs = [tmp_path / f"{number}.jsonl" for number in range(3)]
    built = build_tokens(inputs, tmp_path / "built", bytes_section, append_eod=True)
    assert merged == built
    for path in (bin_path, idx_path, stamp_path):
        assert path(tmp_path / "merged").read_bytes() == path(tmp_path / "built").read_bytes()


@pytest.mark.full
@pytest.mark.slow
def test_more_than_2_to_the_31_tokens(tmp_path):
    """Two sparse files of one byte a token, which end in different ones."""
    for name, end in (("a", 1), ("b", 2)):
        lengths, ends = np.full(3, 400_000_001, np.int32), np.array([1, 1, 3])
        with idx_path(tmp_path / name).open("wb") as stream:
            write_index(stream, np.dtype("u1"), [IndexPart(lengths, ends)])
        with bin_path(tmp_path / name).open("wb") as stream:
            stream.truncate(1_200_000_003)
            stream.seek(-1, 2)
            stream.write(bytes([end]))
    merged = merge_tokens([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    tokens = TokenFile.open(tmp_path / "merged")
    tokens.check_order()
    assert merged.tokens == tokens.tokens.size == 2_400_000_006 > 2**31
    assert tokens.offsets.tolist() == [400_000_001 * number for number in range(6)]
    assert tokens.document_ends.tolist() == [0, 1, 1, 3, 4, 4, 6]
    assert (tokens.tokens[1_200_000_002], tokens.tokens[1_200_000_003], tokens.tokens[-1]) == (1, 0, 2)


def test_data_of_different_tokenizers_is_not_mixed(tmp_path, parts):
    note = json.loads(stamp_path(parts[1]).read_text())
    stamp_path(parts[1]).write_text(json.dumps(note | {"fingerprint": "other"}))
    with pytest.raises(DataError, match="made with different tokenizers"):
        merge_tokens(parts, tmp_path / "merged")
    assert not list(tmp_path.glob("*merged*"))


def test_data_of_different_dtypes_is_not_mixed(tmp_path, parts):
    content = bytearray(idx_path(parts[2]).read_bytes())
    content[17] = 3
    idx_path(parts[2]).write_bytes(content)
    with pytest.raises(DataError, match=r"part0 holds uint16 tokens, but .*part2 int16"):
        merge_tokens(parts, tmp_path / "merged")


def test_without_a_note_at_one_input_the_result_has_none(tmp_path, parts):
    stamp_path(parts[1]).unlink()
    merge_tokens(parts, tmp_path / "merged")
    assert not stamp_path(tmp_path / "merged").exists()


def test_with_force_the_note_of_replaced_files_is_removed(tmp_path, parts):
    merge_tokens(parts, tmp_path / "merged")
    assert stamp_path(tmp_path / "merged").exists()
    stamp_path(parts[1]).unlink()
    merge_tokens(parts, tmp_path / "merged", force=True)
    assert not stamp_path(tmp_path / "merged").exists()


def test_existing_files_are_kept(tmp_path, parts):
    with pytest.raises(DataError, match="exists already"):
        merge_tokens(parts[:2], parts[2])


def test_more_files_than_a_process_may_open(tmp_path, parts):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as ten:  # numbers that are free, which need not be neighbours
        numbers = [ten.enter_context((tmp_path / str(file)).open("wb")).fileno() for file in range(10)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(numbers) + 1, hard))
    try:
        merged = merge_tokens(parts * 20, tmp_path / "merged")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert merged.documents == TokenFile.open(tmp_path / "merged").documents == 20 * (len(DOCUMENTS) + 6)


class TestAMergeThatWasKilled:
    @pytest.fixture
    def killed(self, tmp_path, parts):
        """Kill merges at the step given, and return what they have left."""

        def kill(step):
            process = multiprocessing.get_context("spawn").Process(target=_killed, args=(step, parts, tmp_path / "m"))
            process.start()
            process.join()
            assert process.exitcode == -signal.SIGKILL
            return sorted(path.name for path in tmp_path.iterdir() if path.name.startswith((".m", "m")))

        return kill

    def test_between_two_names_is_repeated(self, tmp_path, parts, killed):
        left = killed("name")
        assert [name for name in left if not name.startswith(".")] == ["m.bin"]
        self.check(tmp_path, parts)

    @pytest.mark.full
    def test_a_merge_killed_while_copying_leaves_no_lasting_files(self, tmp_path, parts, killed):
        assert all(name.endswith(".partial") for name in killed("copy"))
        assert len(killed("copy")) == 2
        self.check(tmp_path, parts)

    def test_is_distinguished_from_a_running_one(self, tmp_path, parts):
        at_work = tmp_path / ".m.bin.host.1.partial"
        with at_work.open("wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            merge_tokens(parts, tmp_path / "m")
        assert at_work.exists()

    def check(self, folder, parts):
        merge_tokens(parts, folder / "m")
        merge_tokens(parts, folder / "whole")
        for path in (bin_path, idx_path, stamp_path):
            assert path(folder / "m").read_bytes() == path(folder / "whole").read_bytes()
        assert not list(folder.glob(".*.partial"))


def _killed(step, parts, output):
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "copy":
        merging._copy = kill
    else:
        merging.stamp_path = kill
    merge_tokens(parts, output)


class TestShardsOfOneBuild:
    """Each is built by a separate command, which finds the inputs itself."""

    @pytest.fixture
    def shard(self, tmp_path, bytes_section):
        def build(number, inputs, *, name="c", **options):
            part = Shard(number, 2)
            prefix = tmp_path / f"{name}{part.suffix}"
            build_tokens([Path(given) for given in inputs], prefix, bytes_section, shard=part, **options)
            return prefix

        return build

    def test_are_merged_without_a_trace_of_them(self, tmp_path, shard, corpus, bytes_section):
        merge_tokens([shard(number, [corpus]) for number in range(2)], tmp_path / "merged")
        build_tokens([corpus], tmp_path / "whole", bytes_section)
        for path in (bin_path, idx_path, stamp_path):
            assert path(tmp_path / "merged").read_bytes() == path(tmp_path / "whole").read_bytes()

    def test_are_not_those_of_another_corpus(self, tmp_path, shard):
        corpora = [write_jsonl(tmp_path / f"{name}.jsonl", DOCUMENTS) for name in "xy"]
        with pytest.raises(DataError, match=r"c-00000-of-00002 and .*c-00001-of-00002 are shards of different builds"):
            merge_tokens([shard(number, [corpus]) for number, corpus in enumerate(corpora)], tmp_path / "merged")

    def test_know_a_file_that_came_in_between_them(self, tmp_path, shard):
        """Some bytes would be in no shard."""
        (tmp_path / "in").mkdir()
        write_jsonl(tmp_path / "in" / "b.jsonl", DOCUMENTS)
        first = shard(0, [tmp_path / "in"])
        write_jsonl(tmp_path / "in" / "a.jsonl", DOCUMENTS)
        with pytest.raises(DataError, match=r"shards of different builds.*\n.*build all shards again"):
            merge_tokens([first, shard(1, [tmp_path / "in"])], tmp_path / "merged")
        assert not list(tmp_path.glob("*merged*"))

    @pytest.mark.parametrize(
        "options", [{"append_eod": True}, {"json_key": "other"}, {"cleaning": Cleaning(min_length=2)}]
    )
    def test_are_not_those_with_other_options(self, tmp_path, shard, options):
        lines = [{"text": text, "other": text} for text in DOCUMENTS]
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        shards = [shard(0, [tmp_path / "c.jsonl"]), shard(1, [tmp_path / "c.jsonl"], **options)]
        with pytest.raises(DataError, match=r"shards of different builds.*--json-key, --append-eod"):
            merge_tokens(shards, tmp_path / "merged")

    def test_may_name_the_inputs_differently_and_read_copies(self, tmp_path, shard, corpus, monkeypatch):
        first = shard(0, [corpus])
        monkeypatch.chdir(tmp_path)
        os.utime(corpus, ns=(1, 1))
        assert merge_tokens([first, shard(1, ["corpus.*"])], tmp_path / "merged").documents == len(DOCUMENTS)

    def test_may_have_been_built_before_this_was_noted(self, tmp_path, shard, corpus):
        shards = [shard(number, [corpus]) for number in range(2)]
        note = json.loads(stamp_path(shards[0]).read_text())
        del note["corpus"]
        stamp_path(shards[0]).write_text(json.dumps(note))
        assert merge_tokens(shards, tmp_path / "merged").documents == len(DOCUMENTS)

    def test_have_one_name(self, tmp_path, shard, corpus):
        shards = [shard(number, [corpus], name=name) for number, name in enumerate("xy")]
        with pytest.raises(DataError, match=r"x-00000-of-00002 and .*y-00001-of-00002 are shards with different names"):
            merge_tokens(shards, tmp_path / "merged")


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_a_damaged_note_is_named(tmp_path, parts, content):
    stamp_path(parts[1]).write_text(content)
    with pytest.raises(DataError, match=r"part1\.tokenizer\.json is damaged"):
        merge_tokens(parts, tmp_path / "merged")
