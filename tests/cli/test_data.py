"""`pretrain data` as users meet it."""

import fcntl
import gzip
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from functools import partial

import pytest
from click.testing import CliRunner

from pretrain.cli.command_line import commands
from pretrain.cli.main import main
from pretrain.data.tokenizers.bpe import train_tokenizer
from pretrain.tools.corpus.chunks import read_chunks


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number}", "title": "t"}) + "\n" for number in range(10)))
    return path


@pytest.fixture
def pretrain(capsys):
    """Run the command line; returns (exit code, output, errors)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        return exit_.value.code, *capsys.readouterr()

    return run


@pytest.fixture
def published_files(corpus):
    """A small tokenizer under the names of the published ones, beside the corpus."""
    file = corpus.with_name("20B_tokenizer.json")
    train_tokenizer([f"document {number}" for number in range(10)], 262, file)
    model = json.loads(file.read_text())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    corpus.with_name("gpt2-vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": 262}))
    corpus.with_name("gpt2-merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")


def build(pretrain, corpus, *options):
    prefix = corpus.with_name("out")
    return pretrain("data", "build", corpus, "--output-prefix", prefix, "--workers", "1", *options)


class TestBuild:
    def test_writes_megatrons_names_and_says_what(self, pretrain, corpus):
        code, output, errors = build(pretrain, corpus, "--tokenizer-type", "bytes", "--append-eod")
        assert (code, errors) == (0, "")
        assert output.startswith(f"{corpus.with_name('out_text_document')}: 10 documents, 110 tokens of 2 bytes, ")
        names = {path.name for path in corpus.parent.iterdir()} - {"corpus.jsonl"}
        assert names == {"out_text_document.bin", "out_text_document.idx", "out_text_document.tokenizer.json"}

    def test_another_key_gives_another_name(self, pretrain, corpus):
        code, output, _ = build(pretrain, corpus, "--tokenizer-type", "bytes", "--json-key", "title")
        assert (code, "out_title_document: 10 documents, 10 tokens" in output) == (0, True)

    @pytest.mark.parametrize("name", ["GPT2BPETokenizer", "gpt2"])
    def test_megatrons_names_of_tokenizers_are_known(self, pretrain, corpus, name):
        code, _, errors = build(pretrain, corpus, "--tokenizer-type", name, "--vocab-file", corpus)
        assert code == 2
        assert "type gpt2 needs vocab_file and merge_file; merge_file is not given" in errors

    def test_the_published_commands_work_as_they_are(self, pretrain, corpus, monkeypatch, published_files):
        """Those for Megatron-DeepSpeed and, with a tokenizer.json as --vocab, for GPT-NeoX."""
        monkeypatch.chdir(corpus.parent)
        both = "--dataset-impl mmap --append-eod --workers 2"
        ours, theirs = (f"--tokenizer-type GPT2BPETokenizer --{name}" for name in ("vocab-file", "vocab"))
        for prefix, how in (("ours", ours), ("theirs", theirs)):
            command = (
                f"--input corpus.jsonl --output-prefix {prefix} {how} gpt2-vocab.json --merge-file gpt2-merges.txt"
            )
            code, _, errors = pretrain("data", "build", *command.split(), *both.split())
            assert (code, errors) == (0, "")
        names = [f"{prefix}_text_document.bin" for prefix in ("ours", "theirs")]
        assert len({corpus.with_name(name).read_bytes() for name in names}) == 1
        # The list of files is written over several lines there.
        neox = ["--input", "corpus.jsonl,   corpus.jsonl", "--output-prefix", "neox", "--tokenizer-type", "HFTokenizer"]
        code, output, errors = pretrain("data", "build", *neox, "--vocab", "20B_tokenizer.json", *both.split())
        assert (code, errors, "20 documents" in output) == (0, "", True)

    def test_flags_of_preprocess_data_are_answered_all_at_once(self, pretrain, corpus):
        code, _, errors = build(pretrain, corpus, "--chunk-size", "25", "--jsonl-keys", "text", "--foce")
        assert code == 2
        assert errors.splitlines() == [
            "--chunk-size: not needed: chunks of documents have a fixed size.",
            "--jsonl-keys: here it is --json-key.",
            "--foce: there is no such option. Did you mean '--force'?",
            "Try 'pretrain data build --help'.",
        ]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--tokenizer-type", "bpe"], "--tokenizer-type 'bpe' is not gpt2 (GPT2BPETokenizer), "),
            (["--tokenizer-type", "SentencePieceTokenizer"], "Convert its model to Hugging Face's tokenizer.json"),
            ([], "--tokenizer-type is missing"),
            (["--tokenizer-type", "bytes", "--json-key", "body"], "corpus.jsonl:1: no key 'body'"),
            (["--tokenizer-file", "none.json"], "none.json cannot be read"),
            (["--tokenizer-type", "bytes", "--workers", "0"], "--workers"),
        ],
    )
    def test_mistakes_take_three_lines_and_exit_code_2(self, pretrain, corpus, options, message):
        code, output, errors = build(pretrain, corpus, *options)
        assert (code, output) == (2, "")
        assert message in errors
        assert len(errors.splitlines()) <= 3
        assert not list(corpus.parent.glob("*out*"))

    def test_an_existing_file_is_kept_without_force(self, pretrain, corpus):
        build(pretrain, corpus, "--tokenizer-type", "bytes")
        code, _, errors = build(pretrain, corpus, "--tokenizer-type", "bytes")
        assert (code, "--force" in errors) == (2, True)
        assert build(pretrain, corpus, "--tokenizer-type", "bytes", "--force")[0] == 0

    def test_packed_input_needs_no_option(self, pretrain, corpus):
        packed = corpus.with_name("packed.jsonl.gz")
        packed.write_bytes(gzip.compress(corpus.read_bytes()))
        assert "10 documents, 100 tokens" in build(pretrain, packed, "--tokenizer-type", "bytes")[1]

    def test_starts_without_torch(self, corpus):
        options = ("data", "build", corpus, "--output-prefix", corpus.with_name("o"), "--tokenizer-type", "bytes")
        assert imported(*options, "--workers", "1").isdisjoint({"torch", "megatron", "transformers"})

    def test_help_starts_without_numpy(self):
        assert imported("data", "build", "--help").isdisjoint({"torch", "numpy", "tokenizers", "orjson"})


def imported(*arguments):
    """Return the modules that a command imports in a process of its own."""
    program = "import sys; from pretrain.cli.main import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split())


class TestProgress:
    @pytest.mark.full
    def test_a_terminal_gets_a_bar(self, corpus):
        """Run it with a terminal of 100 columns as stderr."""
        leader, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        options = ["--output-prefix", corpus.with_name("o"), "--tokenizer-type", "bytes", "--workers", "1"]
        command = [sys.executable, "-m", "pretrain.cli.main", "data", "build", corpus, *options]
        shown = b""
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=follower) as process:
            os.close(follower)
            with suppress(OSError):  # EIO: the command has closed the terminal
                while part := os.read(leader, 1 << 16):
                    shown += part
        os.close(leader)
        shown = shown.decode()
        assert process.returncode == 0, shown
        assert "10 documents" in shown
        assert f"{corpus.stat().st_size} B of {corpus.stat().st_size} B" in shown

    def test_a_log_gets_a_progress_line_at_intervals(self, pretrain, corpus, monkeypatch):
        monkeypatch.setattr("pretrain.report.console.LINE_EVERY", 0.0)
        code, _, errors = build(pretrain, corpus, "--tokenizer-type", "bytes")
        assert (code, len(errors.splitlines())) == (0, 1)
        assert re.fullmatch(r"(\d+) B of \1 B, [\d.]+ [kM]?B/s, 10 documents, 0:00 left\n", errors)

    @pytest.mark.parametrize(("options", "continued"), [([], True), (["--append-eod", "--force"], False)])
    def test_the_log_reports_a_continued_build_only(self, pretrain, corpus, monkeypatch, options, continued):
        monkeypatch.setattr("pretrain.tools.corpus.build.read_chunks", partial(read_chunks, chunk_bytes=50))
        with corpus.open("a") as stream:
            stream.write("oops\n")
        assert build(pretrain, corpus, "--tokenizer-type", "bytes")[0] == 2
        assert corpus.with_name("out_text_document.partial").is_dir()
        code, output, errors = build(pretrain, corpus, "--tokenizer-type", "bytes", "--on-error", "skip", *options)
        assert (code, "10 documents" in output) == (0, True)
        assert re.fullmatch(r"continuing an interrupted build at \d+ B\n" if continued else "", errors)


class TestBuildOptions:
    def test_shards_are_named_by_their_place_and_merged(self, pretrain, corpus):
        for number in range(2):
            code, output, _ = build(pretrain, corpus, "--tokenizer-type", "bytes", "--shard", f"{number}/2")
            assert (code, f"out_text_document-0000{number}-of-00002: " in output) == (0, True)
        shards = sorted(corpus.parent.glob("*.idx"))
        assert pretrain("data", "merge", *shards, "--output-prefix", corpus.with_name("m"))[0] == 0
        build(pretrain, corpus, "--tokenizer-type", "bytes")
        for suffix in (".bin", ".idx"):
            whole = corpus.with_name(f"out_text_document{suffix}").read_bytes()
            assert corpus.with_name(f"m{suffix}").read_bytes() == whole

    def test_malformed_lines_are_counted_and_the_first_is_shown(self, pretrain, corpus):
        with corpus.open("a") as stream:
            stream.write('oops\n{"text": 7}\n')
        code, output, _ = build(pretrain, corpus, "--tokenizer-type", "bytes", "--on-error", "skip")
        assert (code, "10 documents" in output) == (0, True)
        assert f"left out: 2 malformed; the first is {corpus}:11: not JSON" in output

    def test_cleaning_reports_what_it_dropped(self, pretrain, corpus):
        with corpus.open("a") as stream:
            stream.write('{"text": "document 1"}\n{"text": "a"}\n')
        options = ("--tokenizer-type", "bytes", "--drop-duplicates", "--min-length", "2", "--clean")
        _, output, _ = build(pretrain, corpus, *options)
        assert "10 documents" in output
        assert "left out: 1 short documents, 1 duplicates" in output

    def test_megatrons_options_are_known(self, pretrain, corpus):
        options = (
            "--input",
            corpus,
            "--output-prefix",
            corpus.with_name("o"),
            "--dataset-impl",
            "mmap",
            "--workers",
            "4",
        )
        assert pretrain("data", "build", *options, "--tokenizer-type", "bytes")[0] == 0

    def test_without_an_input_it_says_so(self, pretrain, corpus):
        code, _, errors = pretrain("data", "build", "--output-prefix", corpus, "--tokenizer-type", "bytes")
        assert (code, "INPUT..." in errors) == (2, True)

    def test_gpt_neox_names_its_tokenizer_as_a_vocabulary(self, pretrain, corpus, shared_data):
        corpus.write_text("".join(json.dumps({"text": f"document {number} " * 9}) + "\n" for number in range(2000)))
        options = ("--tokenizer-type", "HFTokenizer", "--vocab-file", shared_data / "20B_tokenizer.json")
        code, output, _ = build(pretrain, corpus, *options)
        assert (code, "texts were compared, and the tokenizers library gave the same" in output) == (0, True)
        code, again, _ = build(pretrain, corpus, *options, "--force", "--encoder", "tokenizers")
        assert (code, "gigatoken" in again) == (0, False)
        assert again.split(" s")[0].rpartition(",")[0] == output.split(" s")[0].rpartition(",")[0]

    def test_a_key_with_a_slash_and_a_prefix_without_a_name(self, pretrain, corpus):
        corpus.write_text('{"a/b": "text"}\n')
        _, output, _ = build(pretrain, corpus, "--tokenizer-type", "bytes", "--json-key", "a/b")
        assert "out_a_b_document: 1 documents" in output
        options = ("--tokenizer-type", "bytes", "--json-key", "a/b", "--output-prefix", "")
        code, _, errors = pretrain("data", "build", corpus, *options)
        assert (code, "must end in a name" in errors) == (2, True)
        code, _, errors = pretrain("data", "build", corpus, *options[:-1], corpus.parent)
        assert (code, f"is a folder: give a name in it, as in {corpus.parent}/corpus." in errors) == (2, True)


class TestInspect:
    def test_describes_the_files_by_prefix_or_by_either_name(self, pretrain, corpus):
        build(pretrain, corpus, "--tokenizer-type", "bytes")
        prefix = corpus.with_name("out_text_document")
        code, output, _ = pretrain("data", "inspect", prefix)
        assert code == 0
        assert "documents   10 (0 empty)" in output
        assert "tokens      100 as uint16" in output
        for suffix in (".bin", ".idx"):
            assert pretrain("data", "inspect", f"{prefix}{suffix}")[1] == output

    def test_shows_text_with_a_tokenizer(self, pretrain, corpus):
        build(pretrain, corpus, "--tokenizer-type", "bytes")
        _, output, _ = pretrain("data", "inspect", corpus.with_name("out_text_document"), "--tokenizer-type", "bytes")
        assert "document 0 begins with 'document 0'" in output

    def test_damage_is_an_error(self, pretrain, corpus):
        build(pretrain, corpus, "--tokenizer-type", "bytes")
        tokens = corpus.with_name("out_text_document.bin")
        tokens.write_bytes(tokens.read_bytes()[:-1])
        code, output, errors = pretrain("data", "inspect", corpus.with_name("out_text_document"))
        assert (code, output) == (2, "")
        assert "is truncated: 199 bytes, out_text_document.idx expects 200" in errors


def test_merge_joins_files(pretrain, corpus):
    build(pretrain, corpus, "--tokenizer-type", "bytes")
    part, merged = corpus.with_name("out_text_document"), corpus.with_name("merged")
    code, output, _ = pretrain("data", "merge", part, part, "--output-prefix", merged)
    assert (code, output) == (0, f"{merged}: 20 documents, 200 tokens\n")
    assert "documents   20" in pretrain("data", "inspect", merged)[1]


def test_merge_refuses_both_files_of_a_pair(pretrain, corpus):
    part, merged = corpus.with_name("out_text_document"), corpus.with_name("merged")
    code, _, errors = pretrain("data", "merge", f"{part}.bin", f"{part}.idx", "--output-prefix", merged)
    assert (code, f"{part}.bin and {part}.idx belong to the same token file.\n" in errors) == (2, True)


@pytest.mark.parametrize("command", ["build", "merge"])
def test_an_output_prefix_is_one_that_a_recipe_can_name(pretrain, corpus, command):
    code, _, errors = pretrain("data", command, corpus, "--output-prefix", "mm.bin")
    assert code == 2
    assert "'mm.bin' is one of the token file's two files. Leave the suffix out: mm" in errors


@pytest.mark.parametrize("option", [("--samples", "3"), ("--all-ids",)])
def test_options_that_need_a_tokenizer_ask_for_it(pretrain, corpus, option):
    build(pretrain, corpus, "--tokenizer-type", "bytes")
    prefix = corpus.with_name("out_text_document")
    code, output, errors = pretrain("data", "inspect", prefix, *option)
    assert (code, output) == (2, "")
    assert f"{option[0]} needs the tokenizer" in errors
    assert "Give --tokenizer-file" in errors
    assert pretrain("data", "inspect", prefix, *option, "--tokenizer-type", "bytes")[0] == 0


@pytest.mark.parametrize("command", [["data"], ["data", "build"], ["data", "inspect"], ["data", "merge"]])
def test_every_command_has_help(command):
    result = CliRunner().invoke(commands, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
