"""`pretrain data build`: Megatron's bytes for any number of workers, and no partial files."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import TokenFile, bin_path, idx_path
from pretrain.data.token_files.tokenizer_stamp import check_stamp, stamp_path
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import build, chunks
from pretrain.tools.corpus.build import build_tokens


def megatrons(prefix, entries, tokenizer, *, append_eod):
    """Do with each line what Megatron-LM's tools/preprocess_data.py does, with megatron-core's builder."""
    from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(str(bin_path(prefix)), dtype=DType.optimal_dtype(tokenizer.vocab_size))
    for text in entries:
        ids, lengths = [], []
        for sentence in text if isinstance(text, list) else [text]:
            sentence_ids = tokenizer.encode(sentence)
            if len(sentence_ids) > 0:
                ids.extend(sentence_ids)
                lengths.append(len(sentence_ids))
        if len(ids) > 0 and append_eod:
            ids.append(tokenizer.eod)
            lengths[-1] += 1
        builder.add_document(ids, lengths)
    builder.finalize(str(idx_path(prefix)))


def content(prefix):
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


@pytest.mark.parametrize("append_eod", [False, True])
def test_the_bytes_are_megatrons(bridged, tmp_path, bytes_section, append_eod):
    entries = [*DOCUMENTS[:20], "", ["first", "", "last"], [], [""], DOCUMENTS[20]]
    corpus = write_jsonl(tmp_path / "c.jsonl", entries)
    build_tokens([corpus], tmp_path / "ours", bytes_section, append_eod=append_eod)
    megatrons(tmp_path / "megatrons", entries, load_tokenizer(bytes_section), append_eod=append_eod)
    assert content(tmp_path / "ours") == content(tmp_path / "megatrons")


def test_gpt2s_bytes_are_megatrons(bridged, tmp_path, shared_data):
    section = TokenizerSection(
        type="gpt2", vocab_file=str(shared_data / "gpt2-vocab.json"), merge_file=str(shared_data / "gpt2-merges.txt")
    )
    with (shared_data / "peps.jsonl").open() as stream:
        entries = [json.loads(next(stream))["text"] for _ in range(5)]
    build_tokens([write_jsonl(tmp_path / "c.jsonl", entries)], tmp_path / "ours", section, append_eod=True)
    megatrons(tmp_path / "megatrons", entries, load_tokenizer(section), append_eod=True)
    assert content(tmp_path / "ours") == content(tmp_path / "megatrons")


@pytest.mark.full
@pytest.mark.ranks
def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, bytes_section, monkeypatch):
    corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
    build_tokens([corpus], tmp_path / "one", bytes_section, append_eod=True)
    monkeypatch.setattr(build, "CHUNK_BYTES", 500)
    monkeypatch.setattr(build, "read_chunks", partial(chunks.read_chunks, chunk_bytes=500))
    build_tokens([corpus], tmp_path / "three", bytes_section, append_eod=True, workers=3)
    assert content(tmp_path / "three") == content(tmp_path / "one")


def test_inputs_follow_one_another(tmp_path, bytes_section):
    inputs = [write_jsonl(tmp_path / f"{name}.jsonl", [name]) for name in "cab"]
    built = build_tokens(inputs, tmp_path / "p", bytes_section)
    assert bytes(TokenFile.open(tmp_path / "p").tokens.astype("u1")) == b"cab"
    assert (built.documents, built.tokens, built.token_bytes) == (3, 3, 2)


def test_progress_is_reported_for_every_chunk(tmp_path, corpus, bytes_section):
    told = []
    build_tokens([corpus, corpus], tmp_path / "p", bytes_section, progress=told.append)
    size = corpus.stat().st_size
    assert [(progress.read, progress.total) for progress in told] == [(size, 2 * size), (2 * size, 2 * size)]
    assert told[-1].written.documents == 2 * len(DOCUMENTS)


class TestTokenizerNote:
    def test_the_tokenizer_is_noted_and_checked(self, tmp_path, token_files, bytes_section):
        tokenizer = load_tokenizer(bytes_section)
        assert json.loads(stamp_path(token_files).read_text())["fingerprint"] == tokenizer.fingerprint
        check_stamp(token_files, tokenizer)
        stamp_path(token_files).write_text('{"fingerprint": "other", "vocab_size": 9, "eod": 1}')
        with pytest.raises(DataError, match="made with another tokenizer"):
            check_stamp(token_files, tokenizer)

    def test_megatrons_data_has_none_and_passes(self, token_files, bytes_section):
        stamp_path(token_files).unlink()
        check_stamp(token_files, load_tokenizer(bytes_section))

    @pytest.mark.parametrize("text", ["", "[]", "{}", '"x"'])
    def test_a_damaged_one_is_named(self, token_files, bytes_section, text):
        stamp_path(token_files).write_text(text)
        with pytest.raises(DataError, match=r"corpus\.tokenizer\.json is damaged"):
            check_stamp(token_files, load_tokenizer(bytes_section))


class TestNothingIsLeftBehind:
    @pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.ranks)])
    def test_after_a_malformed_line(self, tmp_path, bytes_section, workers, monkeypatch):
        monkeypatch.setattr(build, "CHUNK_BYTES", 10)
        corpus = tmp_path / "c.jsonl"
        corpus.write_text('{"text": "a"}\n' * 5 + "oops\n")
        with pytest.raises(DataError, match=r"c\.jsonl:6: not JSON"):
            build_tokens([corpus], tmp_path / "out" / "p", bytes_section, workers=workers)
        assert list((tmp_path / "out").iterdir()) == []

    def test_when_there_is_no_text(self, tmp_path, bytes_section):
        corpus = write_jsonl(tmp_path / "c.jsonl", ["", ""])
        with pytest.raises(DataError, match="no text found"):
            build_tokens([corpus], tmp_path / "out" / "p", bytes_section)
        assert list((tmp_path / "out").iterdir()) == []

    def test_when_an_input_is_missing_nothing_is_begun(self, tmp_path, corpus, bytes_section):
        with pytest.raises(DataError, match=r"none\.jsonl does not exist"):
            build_tokens([corpus, tmp_path / "none.jsonl"], tmp_path / "out" / "p", bytes_section)
        assert not (tmp_path / "out").exists()

    def test_when_the_folder_is_a_file(self, tmp_path, corpus, bytes_section):
        (tmp_path / "file").write_text("")
        with pytest.raises(DataError, match="cannot be written"):
            build_tokens([corpus], tmp_path / "file" / "p", bytes_section)

    @pytest.mark.full
    @pytest.mark.ranks
    def test_workers_end_when_their_parent_is_killed(self, endless_build):
        process = endless_build(workers=2)
        workers = _children(process.pid)
        assert len(workers) >= 2
        process.kill()
        process.wait(30)
        deadline = time.monotonic() + 120
        while any(map(_runs, workers)):
            assert time.monotonic() < deadline, "workers outlive their parent"
            time.sleep(0.05)


@pytest.fixture
def endless_build(tmp_path):
    """Start a build that reads the same chunk forever, and wait until it has written something."""
    corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
    (tmp_path / "main.py").write_text(ENDLESS)
    processes = []

    def start(workers):
        command = [sys.executable, str(tmp_path / "main.py"), str(corpus), str(tmp_path / "out" / "p"), str(workers)]
        process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.PIPE)
        processes.append(process)
        assert process.stdout.readline() == b"writing\n"
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


ENDLESS = """
import itertools, sys
from pathlib import Path
from pretrain.tools.corpus import build
from pretrain.recipe.sections.data import TokenizerSection

def say_once(chunk, told=[]):
    if not told:
        print("writing", flush=True)
        told.append(1)

if __name__ == "__main__":
    corpus, prefix, workers = sys.argv[1:]
    build.read_chunks = lambda *given, once=build.read_chunks: itertools.cycle(list(once(*given)))
    build.CHUNK_BYTES = 100  # many chunks are expected, so that processes are started
    section = TokenizerSection(type="bytes")
    build.build_tokens([Path(corpus)], Path(prefix), section, workers=int(workers), progress=say_once)
"""


def _children(pid):
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            children.append(int(stat.parent.name))
    return children


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


class TestExistingFiles:
    def test_are_kept(self, corpus, token_files, bytes_section):
        before = content(token_files)
        with pytest.raises(DataError, match=r"corpus\.idx exists already"):
            build_tokens([corpus], token_files, bytes_section)
        assert content(token_files) == before

    def test_are_replaced_on_demand(self, tmp_path, token_files, bytes_section):
        build_tokens([write_jsonl(tmp_path / "n.jsonl", ["new"])], token_files, bytes_section, force=True)
        assert TokenFile.open(token_files).tokens.size == 3

    def test_survive_a_build_that_fails(self, tmp_path, token_files, bytes_section):
        before = content(token_files)
        (tmp_path / "n.jsonl").write_text("oops")
        with pytest.raises(DataError, match="not JSON"):
            build_tokens([tmp_path / "n.jsonl"], token_files, bytes_section, force=True)
        assert content(token_files) == before
