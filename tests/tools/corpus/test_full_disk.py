"""A disk that is full, or fails: it is named, what reached it stays, and the same command continues."""

import errno
import json
import os
from functools import partial

import pytest

from data.example_corpus import DOCUMENTS, write_jsonl
from pretrain.data.token_files import writing
from pretrain.data.token_files.reading import bin_path, idx_path
from pretrain.errors import DataError
from pretrain.recipe.sections.data import TokenizerSection
from pretrain.tools.corpus import build, chunks, unfinished
from pretrain.tools.corpus.build import build_tokens
from pretrain.tools.corpus.unfinished import STATE, folder_of

SECTION = TokenizerSection(type="bytes")


def content(prefix):
    return bin_path(prefix).read_bytes(), idx_path(prefix).read_bytes()


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(build, "read_chunks", partial(chunks.read_chunks, chunk_bytes=2000))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return [write_jsonl(tmp_path_factory.mktemp("inputs") / "a.jsonl", DOCUMENTS)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, inputs):
    prefix = tmp_path_factory.mktemp("whole") / "p"
    build_tokens(inputs, prefix, SECTION, append_eod=True)
    return content(prefix)


def test_a_full_disk_is_named_and_what_is_written_stays_valid(tmp_path, inputs, whole, monkeypatch):
    room = [50_000]

    def write(file, content, write=writing.write_all):
        """Write as much as there is room for, as the system does."""
        content = memoryview(content).cast("B")
        write(file, content[: room[0]])
        room[0] -= len(content)
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_all", write)
        with pytest.raises(DataError) as caught:
            build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{tmp_path / 'p'}.partial cannot be written: No space left on device."
    assert "repeat the command" in lines[1]
    build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    assert content(tmp_path / "p") == whole


def test_a_disk_that_is_full_at_the_index_too(tmp_path, inputs, whole, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(build, "write_index", fail)
        with pytest.raises(DataError, match="No space left"):
            build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
    assert content(tmp_path / "p") == whole


def failing_once(monkeypatch, module, name, number, error):
    """Let a call of a system's function fail, and the calls after it succeed, as those of fsync do on Linux."""
    calls, usual = [], getattr(module, name)

    def call(*given):
        calls.append(given)
        if len(calls) == number:
            raise OSError(error, os.strerror(error))
        return usual(*given)

    monkeypatch.setattr(module, name, call)


class TestFailuresOfSaving:
    """Quotas and network disks report a full disk only here."""

    @pytest.fixture(autouse=True)
    def _always_saved(self, monkeypatch):
        monkeypatch.setattr(unfinished, "SAVED_EVERY", 0.0)

    def message(self, inputs, prefix):
        with pytest.raises(DataError) as caught:
            build_tokens(inputs, prefix, SECTION, append_eod=True)
        first, second = str(caught.value).splitlines()
        assert "repeat the command to continue" in second
        return first

    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    @pytest.mark.parametrize("number", [1, 12, 18])  # a save makes five: four files and the state
    def test_of_the_data_are_named_and_what_did_not_reach_the_disk_does_not_count(
        self, tmp_path, inputs, whole, monkeypatch, error, number
    ):
        with monkeypatch.context() as patch:
            failing_once(patch, os, "fsync", number, error)
            expected = f"{tmp_path / 'p'}.partial cannot be written: {os.strerror(error)}."
            assert self.message(inputs, tmp_path / "p") == expected
        saved = folder_of(tmp_path / "p") / STATE
        assert saved.exists() == (number > 5)
        if saved.exists():  # the files are longer
            assert json.loads(saved.read_text())["sizes"]["tokens"] < (saved.parent / "tokens").stat().st_size
        build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
        assert content(tmp_path / "p") == whole

    def test_of_the_state_too(self, tmp_path, inputs, whole, monkeypatch):
        with monkeypatch.context() as patch:
            failing_once(patch, os, "fsync", 10, errno.ENOSPC)
            first = self.message(inputs, tmp_path / "p")
        assert first == f"{folder_of(tmp_path / 'p') / STATE} cannot be written: No space left on device."
        build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
        assert content(tmp_path / "p") == whole

    @pytest.mark.parametrize("from_end", [1, 2, 3])
    def test_of_the_last_steps_too(self, tmp_path, inputs, whole, monkeypatch, from_end):
        """The index, the last state, the note of the tokenizer."""
        calls, usual = [], os.fsync
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda number: calls.append(usual(number)))
            build_tokens(inputs, tmp_path / "counted", SECTION, append_eod=True)
        with monkeypatch.context() as patch:
            failing_once(patch, os, "fsync", len(calls) + 1 - from_end, errno.ENOSPC)
            assert "No space left on device" in self.message(inputs, tmp_path / "p")
        build_tokens(inputs, tmp_path / "p", SECTION, append_eod=True)
        assert content(tmp_path / "p") == whole
