"""The corpus of the quickstart: which text, built once, never half."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pretrain.data.token_files.reading import TokenFile
from pretrain.data.token_files.tokenizer_stamp import check_stamp
from pretrain.data.tokenizers import load_tokenizer
from pretrain.errors import DataError
from pretrain.recipe import make_recipe, to_yaml
from pretrain.tools.corpus.recipe_corpus import prepare_corpus, stdlib_documents
from recipe.smallest import SMALLEST

PROSE = '"""A module that says what it does, in words, at some length."""\n' * 20


@pytest.fixture
def library(tmp_path):
    """A small standard library; returns a function that adds a file."""
    folder = tmp_path / "lib"

    def add(name, content=PROSE):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else (content + f"# {name}\n").encode())

    folder.mkdir()
    add.folder = folder
    return add


def names(library):
    """The files that made it, by the name that each carries."""
    return {text.rsplit("# ", 1)[-1].strip() for text in stdlib_documents(library.folder)}


class TestWhichText:
    def test_modules_and_packages(self, library):
        for name in ("a.py", "package/b.py", "package/deep/c.py"):
            library(name)
        assert names(library) == {"a.py", "package/b.py", "package/deep/c.py"}

    @pytest.mark.parametrize(
        "name",
        [
            "test/a.py", "unittest/test/a.py", "lib2to3/x.py", "idlelib/a.py", "site-packages/x/a.py",
            "__pycache__/a.py", "pydoc_data/topics.py", "encodings/cp1.py", "_sysconfigdata__linux_x.py", "lib.so",
        ],
    )  # fmt: skip
    def test_files_are_excluded_by_name(self, library, name):
        library("kept.py")
        library(name)
        assert names(library) == {"kept.py"}

    @pytest.mark.parametrize(
        "content",
        [b"x = 1\n", b"# \xff\n" + PROSE.encode(), PROSE * 400, "TABLE = [0x00, 0x01, 0x02, 0x03]\n" * 50],
        ids=["tiny", "not UTF-8", "huge", "table"],
    )
    def test_files_are_excluded_by_content(self, library, content):
        library("kept.py")
        library("other.py", content)
        assert names(library) == {"kept.py"}

    def test_a_copy_is_taken_once(self, library):
        library("a.py", PROSE.encode())
        library("b.py", PROSE.encode())
        assert len(list(stdlib_documents(library.folder))) == 1

    def test_the_order_depends_on_the_names_alone(self, library):
        listed = [f"module{number}.py" for number in range(20)]
        for name in reversed(listed):
            library(name)
        ordered = sorted(listed, key=lambda name: hashlib.sha256(name.encode()).digest())
        assert [text.rsplit("# ", 1)[-1].strip() for text in stdlib_documents(library.folder)] == ordered

    def test_no_more_than_max_bytes(self, library):
        for number in range(20):
            library(f"module{number}.py")
        some = list(stdlib_documents(library.folder, max_bytes=5000))
        assert some == list(stdlib_documents(library.folder))[: len(some)]
        assert 0 < sum(len(text.encode()) for text in some) <= 5000

    def test_a_library_without_sources_is_named(self, library):
        with pytest.raises(DataError, match="has no source text of Python's standard library"):
            list(stdlib_documents(library.folder))

    def test_this_pythons_own_is_several_megabytes(self):
        texts = list(stdlib_documents())
        assert len(texts) > 300
        assert sum(map(len, texts)) > 5_000_000
        assert any("class OrderedDict(dict):" in text for text in texts)


@pytest.fixture
def recipe(tmp_path):
    """A recipe that builds its corpus from a part of the library."""
    return make_recipe(
        SMALLEST
        | {
            "tokenizer": {"type": "huggingface", "file": str(tmp_path / "q" / "tokenizer.json"), "vocab_size": 300},
            "data": {
                "path": str(tmp_path / "q" / "python"),
                "corpus": {"source": "python_stdlib", "max_bytes": 200_000},
            },
        }
    )


class TestPrepare:
    def test_builds_text_tokenizer_and_token_files_and_says_so(self, tmp_path, recipe):
        lines = []
        prepare_corpus(recipe, workers=1, log=lines.append)
        tokens, tokenizer = TokenFile.open(recipe.data.path), load_tokenizer(recipe.tokenizer)
        check_stamp(recipe.data.path, tokenizer)
        texts = list(stdlib_documents(max_bytes=200_000))
        assert tokens.documents == len(texts)
        decoded = tokenizer.decode(tokens.tokens.tolist()).split("<|endoftext|>")
        assert decoded == [*texts, ""]
        assert [line.partition(":")[0] for line in lines] == ["corpus", "tokenizer", "token file"]
        assert f"{len(texts)} documents" in lines[0]
        assert f"{tokens.tokens.size:,} tokens" in lines[2]

    def test_does_nothing_the_second_time(self, tmp_path, recipe):
        prepare_corpus(recipe, workers=1, log=lambda _: None)
        before = {path: path.stat().st_mtime_ns for path in (tmp_path / "q").iterdir()}
        prepare_corpus(recipe, workers=1, log=pytest.fail)
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "q").iterdir()} == before

    def test_does_nothing_without_a_corpus(self, tmp_path, small_recipe):
        prepare_corpus(small_recipe(), log=pytest.fail)

    @pytest.mark.parametrize("number", range(1, 10))  # text, tokenizer, index, four files, their state, the note
    def test_continues_after_ctrl_c_at_any_file(self, tmp_path, recipe, monkeypatch, number):
        calls, usual = [], os.fsync

        def interrupt(file):
            calls.append(file)
            if len(calls) == number:
                raise KeyboardInterrupt
            usual(file)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", interrupt)
            with pytest.raises(KeyboardInterrupt):
                prepare_corpus(recipe, workers=1, log=lambda _: None)
        assert not list((tmp_path / "q").glob(".*.partial"))
        prepare_corpus(recipe, workers=1, log=lambda _: None)
        check_stamp(recipe.data.path, load_tokenizer(recipe.tokenizer))
        assert TokenFile.open(recipe.data.path).documents == len(list(stdlib_documents(max_bytes=200_000)))
        assert not list((tmp_path / "q").glob("*.partial"))

    def test_a_lost_tokenizer_is_trained_and_the_data_rebuilt(self, recipe):
        prepare_corpus(recipe, workers=1, log=lambda _: None)
        Path(recipe.tokenizer.file).unlink()
        prepare_corpus(recipe, workers=1, log=lambda _: None)
        check_stamp(recipe.data.path, load_tokenizer(recipe.tokenizer))

    def test_bytes_need_no_training(self, recipe):
        plain = recipe.model_copy(update={"tokenizer": make_recipe(SMALLEST).tokenizer})
        lines = []
        prepare_corpus(plain, workers=1, log=lines.append)
        assert [line.partition(":")[0] for line in lines] == ["corpus", "token file"]

    @pytest.mark.full
    @pytest.mark.ranks
    def test_one_of_two_concurrent_runs_builds(self, tmp_path, recipe):
        (tmp_path / "recipe.yml").write_text(to_yaml(recipe))
        program = (
            "import sys; from pretrain.recipe import load_recipe;"
            "from pretrain.tools.corpus.recipe_corpus import prepare_corpus;"
            "prepare_corpus(load_recipe(sys.argv[1]), workers=1)"
        )
        command = [sys.executable, "-c", program, str(tmp_path / "recipe.yml")]
        runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        outputs = sorted(run.communicate(timeout=300)[0] for run in runs)
        assert [run.returncode for run in runs] == [0, 0]
        assert outputs[0] == ""
        assert len(outputs[1].splitlines()) == 3

    def test_a_folder_that_cannot_be_written_is_named(self, tmp_path, recipe):
        (tmp_path / "q").write_text("a file, not a folder")
        with pytest.raises(DataError, match=r"python\.lock cannot be written"):
            prepare_corpus(recipe, workers=1)
