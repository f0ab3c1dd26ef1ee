"""A build that is stopped at any moment continues, and its files equal those of an uninterrupted build."""

import fcntl
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import build, chunks, unfinished
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.documents import Cleaning
from pretrain.tools.corpus.unfinished import STATE, folder_of

SECTION = TokenizerSection(type="bytes")
CHUNK = 2000


class Crash(BaseException):
    """Not an error that anything handles."""


def content(prefix):
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in (bin_path(prefix), idx_path(prefix))]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(build, "read_chunks", partial(chunks.read_chunks, chunk_bytes=CHUNK))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return [write_jsonl(folder / "a.jsonl", DOCUMENTS[:200]), write_jsonl(folder / "b.jsonl", DOCUMENTS[150:])]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, inputs):
    prefix = tmp_path_factory.mktemp("whole") / "p"
    build_tokens(inputs, prefix, SECTION, append_eod=True)
    return content(prefix)


def stopped_after(chunks, *args, **options):
    """Build until so many chunks are written."""
    seen = []

    def progress(told):
        seen.append(told)
        if len(seen) == chunks:
            raise Crash

    build_tokens(*args, progress=progress, **options)


@pytest.mark.full
@settings(max_examples=30)
@given(chunks=st.lists(st.integers(1, 10), max_size=3), garbage=st.binary(max_size=40))
def test_the_bytes_are_those_of_a_build_that_was_not_stopped(tmp_path_factory, inputs, whole, chunks, garbage):
    prefix = tmp_path_factory.mktemp("out") / "p"
    for number in chunks:
        with pytest.raises(Crash):
            stopped_after(number, inputs, prefix, SECTION, append_eod=True)
        for name in unfinished.FILES:  # data of a chunk that the state does not include yet
            with (folder_of(prefix) / name).open("ab") as stream:
                stream.write(garbage)
    build_tokens(inputs, prefix, SECTION, append_eod=True)
    assert content(prefix) == whole
    assert not folder_of(prefix).exists()


def test_it_continues_where_it_stopped(tmp_path, inputs):
    with pytest.raises(Crash):
        stopped_after(10, inputs, tmp_path / "p", SECTION, append_eod=True)
    before = json.loads((folder_of(tmp_path / "p") / STATE).read_text())["written"][0]
    told = []
    build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True, progress=told.append)
    assert before < told[0].written.documents <= before + CHUNK // 20


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_compressed_files_too(tmp_path, inputs, whole, suffix):
    import gzip
    import lzma

    import zstandard

    pack = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[suffix]
    compressed = []
    for path in inputs:
        compressed.append(tmp_path / f"{path.name}{suffix}")
        compressed[-1].write_bytes(pack(path.read_bytes()))
    for count in (7, 9, 40):
        with pytest.raises(Crash):
            stopped_after(count, compressed, tmp_path / "p", SECTION, append_eod=True)
    build_tokens(compressed, tmp_path / "p", SECTION, append_eod=True)
    assert content(tmp_path / "p") == whole


def test_duplicates_from_before_are_known(tmp_path, inputs):
    cleaning = Cleaning(drop_duplicates=True)
    whole = build_tokens(inputs, tmp_path / "whole", SECTION, cleaning=cleaning)
    assert whole.counts.duplicates == 350 - len(set(DOCUMENTS)) > 0
    with pytest.raises(Crash):
        stopped_after(30, inputs, tmp_path / "p", SECTION, cleaning=cleaning)
    assert build_tokens(inputs, tmp_path / "p", SECTION, cleaning=cleaning) == whole
    assert content(tmp_path / "p") == content(tmp_path / "whole")


@pytest.fixture(scope="module")
def section(tmp_path_factory):
    file = tmp_path_factory.mktemp("trained") / "tokenizer.json"
    train_tokenizer(DOCUMENTS, 300, file)
    return TokenizerSection(type="huggingface", file=str(file))


class TestWhatWasCompared:
    @pytest.fixture
    def whole(self, tmp_path, inputs, section, small_as_large):
        built = build_tokens(inputs, tmp_path / "whole", section)
        assert 0 < built.counts.compared <= built.counts.texts == 350
        return built

    def test_before_counts_too(self, tmp_path, inputs, section, whole):
        for count in (10, 10):
            with pytest.raises(Crash):
                stopped_after(count, inputs, tmp_path / "p", section)
        built = build_tokens(inputs, tmp_path / "p", section)
        assert built.counts.texts == whole.counts.texts
        assert (
            whole.counts.compared <= built.counts.compared <= built.counts.texts
        )  # each time begins with a larger sample

    def test_is_reported_if_only_the_names_were_missing(self, tmp_path, inputs, section, whole, monkeypatch):
        with monkeypatch.context() as patch:
            patch.setattr(build, "_publish", lambda *_: (_ for _ in ()).throw(Crash))
            with pytest.raises(Crash):
                build_tokens(inputs, tmp_path / "p", section)
        assert build_tokens(inputs, tmp_path / "p", section) == whole

    def test_is_no_more_if_the_reference_encodes_the_rest(self, tmp_path, inputs, section, whole):
        with pytest.raises(Crash):
            stopped_after(10, inputs, tmp_path / "p", section)
        built = build_tokens(inputs, tmp_path / "p", section, reference_only=True)
        assert content(tmp_path / "p") == content(tmp_path / "whole")
        assert 0 < built.counts.texts < whole.counts.texts

    def test_is_not_checked_for_a_state_without_it(self, tmp_path, inputs, section, whole):
        with pytest.raises(Crash):
            stopped_after(10, inputs, tmp_path / "p", section)
        state = folder_of(tmp_path / "p") / STATE
        entry = json.loads(state.read_text())
        texts = entry["counts"].pop("texts")
        assert 0 < entry["counts"].pop("compared") <= texts
        state.write_text(json.dumps(entry))
        built = build_tokens(inputs, tmp_path / "p", section)
        assert (built.counts.texts, built.counts.compared > 0) == (whole.counts.texts - texts, True)


@pytest.mark.full
@pytest.mark.ranks
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_killed_three_times_at_random(tmp_path, inputs, whole, workers):
    """SIGKILL: nothing of the process runs any more."""
    (tmp_path / "main.py").write_text(SLOW_BUILD)
    command = [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "p"), str(workers), *map(str, inputs)]
    moments = random.Random(workers)
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout.readline() == b"begun\n"
        time.sleep(moments.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        process.stdout.close()
    assert (folder_of(tmp_path / "p") / STATE).exists()
    build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    assert content(tmp_path / "p") == whole


SLOW_BUILD = f"""
import sys, time
from functools import partial
from pathlib import Path
from pretrain.tools.corpus import build, unfinished
from pretrain.tools.corpus import chunks
from pretrain.recipe.sections.data import TokenizerSection

def slowly(progress, told=[]):
    if not told:
        print("begun", flush=True)
    told.append(progress)
    time.sleep(0.02 if len(told) < 18 else 600)  # three times as many are not all

if __name__ == "__main__":
    prefix, workers, *inputs = sys.argv[1:]
    unfinished.SAVED_EVERY = 0.0
    build.CHUNK_BYTES = {CHUNK}
    build.read_chunks = partial(chunks.read_chunks, chunk_bytes={CHUNK})
    section = TokenizerSection(type="bytes")
    build.build_tokens(
        list(map(Path, inputs)), Path(prefix), section, append_eod=True, workers=int(workers), progress=slowly
    )
"""


@pytest.mark.parametrize("step", ["write_all", "BuildCounts", "BuildState"])
def test_ctrl_c_between_writing_and_noting_what_is_written(tmp_path, inputs, whole, monkeypatch, step):
    calls, usual = [], getattr(build, step)

    def interrupted(*given):
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return usual(*given)

    monkeypatch.setattr(build, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    assert folder_of(tmp_path / "p").exists()
    build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    assert content(tmp_path / "p") == whole


@pytest.mark.parametrize("step", ["unlink", "write_stamp", "discard"])
def test_a_crash_while_the_files_are_renamed(tmp_path, inputs, whole, monkeypatch, step):
    def crash(*_):
        raise Crash

    target = {"unlink": (type(tmp_path), "replace"), "discard": (unfinished.Unfinished, "discard")}
    with monkeypatch.context() as patch:
        patch.setattr(*target.get(step, (build, step)), crash if step != "unlink" else _replace_but_no_tokens)
        with pytest.raises(Crash):
            build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    if step == "discard":  # everything has its name
        with pytest.raises(DataError, match="exists already"):
            build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    else:
        build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
        assert not folder_of(tmp_path / "p").exists()
    assert content(tmp_path / "p") == whole


def _replace_but_no_tokens(self, target):
    if self.name == unfinished.TOKENS:
        raise Crash
    os.rename(self, target)  # noqa: PTH104  this replaces Path.replace


class TestOtherSettings:
    @pytest.fixture
    def prefix(self, tmp_path, inputs):
        with pytest.raises(Crash):
            stopped_after(5, inputs, tmp_path / "p", SECTION, append_eod=True)
        return tmp_path / "p"

    def test_are_not_continued(self, prefix, inputs):
        with pytest.raises(DataError, match=r"interrupted build that differs in: append_eod\."):
            build_tokens(inputs, prefix, SECTION)
        with pytest.raises(DataError, match=r"differs in: inputs\."):
            build_tokens(inputs[:1], prefix, SECTION, append_eod=True)

    def test_a_changed_input_is_another(self, tmp_path):
        corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
        with pytest.raises(Crash):
            stopped_after(5, [corpus], tmp_path / "p", SECTION)
        os.utime(corpus, ns=(1, 1))
        with pytest.raises(DataError, match=r"differs in: inputs\."):
            build_tokens([corpus], tmp_path / "p", SECTION)

    def test_a_file_that_is_read_in_another_way_is_another_input(self, tmp_path):
        """Named, it is lines of JSON; found in a folder, it is one text."""
        (tmp_path / "in").mkdir()
        corpus = write_jsonl(tmp_path / "in" / "corpus", DOCUMENTS)
        with pytest.raises(Crash):
            stopped_after(5, [corpus], tmp_path / "p", SECTION)
        with pytest.raises(DataError, match=r"differs in: inputs\."):
            build_tokens([corpus.parent], tmp_path / "p", SECTION)

    def test_force_starts_over(self, prefix, inputs, tmp_path):
        build_tokens(inputs, prefix, SECTION, force=True)
        build_tokens(inputs, tmp_path / "without", SECTION)
        assert content(prefix) == content(tmp_path / "without")

    @pytest.mark.parametrize("damage", ["", "{}", '{"settings": 3}'])
    def test_a_damaged_state_is_named(self, prefix, inputs, damage):
        (folder_of(prefix) / STATE).write_text(damage)
        with pytest.raises(DataError, match=r"state\.json is damaged"):
            build_tokens(inputs, prefix, SECTION, append_eod=True)

    def test_a_file_that_lost_something_is_named(self, prefix, inputs):
        os.truncate(folder_of(prefix) / unfinished.TOKENS, 10)
        with pytest.raises(DataError, match="is truncated: 10 bytes"):
            build_tokens(inputs, prefix, SECTION, append_eod=True)


def test_two_processes_do_not_build_the_same(tmp_path, inputs):
    folder_of(tmp_path / "p").mkdir()
    with (folder_of(tmp_path / "p") / "lock").open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="another process is building"):
            build_tokens(inputs, tmp_path / "p", SECTION)


def test_a_malformed_line_keeps_the_lines_before_it_and_skipping_continues(tmp_path):
    corpus = write_jsonl(tmp_path / "c.jsonl", DOCUMENTS)
    with corpus.open("a") as stream:
        stream.write('oops\n{"text": "last"}\n')
    with pytest.raises(DataError, match=r"c\.jsonl:301: not JSON"):
        build_tokens([corpus], tmp_path / "p", SECTION)
    assert folder_of(tmp_path / "p").exists()
    told = []
    built = build_tokens([corpus], tmp_path / "p", SECTION, skip_faults=True, progress=told.append)
    assert told[0].written.documents > 250
    assert (built.documents, built.counts.faults) == (301, 1)
    assert built.counts.first_fault.startswith(f"{corpus}:301: not JSON")
