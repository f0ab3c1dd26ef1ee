"""`pretrain tokenizer train` as users meet it."""

import json

import pytest

from pretrain.cli.main import main
from pretrain.data.token_files.reading import TokenFile
from pretrain.data.tokenizers import load_tokenizer
from pretrain.recipe.sections.data import TokenizerSection

TEXT = "the loss of the last of the losses is the least " * 20


@pytest.fixture
def pretrain(capsys):
    """Run the command line; returns (exit code, output, errors)."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        return exit_.value.code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(("name", "content"), [("a.jsonl", json.dumps({"text": TEXT})), ("a.txt", TEXT)])
def test_trains_on_jsonl_and_on_text(pretrain, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    output = tmp_path / "tokenizer.json"
    code, told, errors = pretrain("tokenizer", "train", tmp_path / name, "--vocab-size", 265, "--output", output)
    assert (code, told, errors) == (0, f"{output}: 265 tokens\n", "")
    tokenizer = load_tokenizer(TokenizerSection(type="huggingface", file=str(output)))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert len(tokenizer.encode(TEXT)) < len(TEXT) * 0.6


def test_texts_that_are_not_utf8_are_named_and_left_out(pretrain, tmp_path):
    output = tmp_path / "tokenizer.json"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text(TEXT)
    (tmp_path / "in" / "b.txt").write_bytes(b"caf\xe9")
    command = ["tokenizer", "train", tmp_path / "in", "--vocab-size", 265, "--output", output]
    code, _, errors = pretrain(*command)
    assert (code, "b.txt:1: not UTF-8" in errors, "--on-error skip" in errors) == (2, True, True)
    code, told, errors = pretrain(*command, "--on-error", "skip")
    assert (code, told) == (0, f"{output}: 265 tokens\n")
    assert "left out: 1 malformed; the first is " in errors
    assert "b.txt:1: not UTF-8" in errors


def test_characters_of_a_text_and_token_files_without_an_end_of_document(pretrain, tmp_path):
    text, output, prefix = tmp_path / "a.txt", tmp_path / "t.json", tmp_path / "tokens"
    text.write_bytes("to be, or\r\n\tnot to b\u00e9".encode())
    assert pretrain("tokenizer", "train", text, "--type", "char", "--output", output)[1] == f"{output}: 12 tokens\n"
    build = ["data", "build", text, "--output-prefix", prefix, "--tokenizer-file", output]
    assert pretrain(*build)[0] == 0
    tokens = TokenFile.open(f"{prefix}_text_document").tokens.tolist()
    tokenizer = load_tokenizer(TokenizerSection(type="huggingface", file=str(output)))
    assert tokenizer.decode(tokens).encode() == text.read_bytes()
    code, _, errors = pretrain(*build, "--append-eod", "--force")
    assert (code, "--append-eod needs an end-of-document token" in errors) == (2, True)
    text.write_text("to be; or")
    code, _, errors = pretrain(*build, "--force")
    assert (code, "a.txt" in errors, "no token for the character ';' (U+003B)" in errors) == (2, True, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "--type bpe needs --vocab-size"),
        (["--vocab-size", 300, "--unknown"], "takes no --unknown"),
        (["--type", "char", "--vocab-size", 300], "--type char takes no --vocab-size"),
    ],
)
def test_options_of_the_other_type_are_refused(pretrain, tmp_path, options, message):
    (tmp_path / "a.txt").write_text(TEXT)
    code, _, errors = pretrain("tokenizer", "train", tmp_path / "a.txt", *options, "--output", tmp_path / "t.json")
    assert (code, message in errors) == (2, True)


def test_says_when_the_text_is_too_small_for_the_vocabulary(pretrain, tmp_path):
    (tmp_path / "a.txt").write_text("aaaa")
    code, _, errors = pretrain(
        "tokenizer", "train", tmp_path / "a.txt", "--vocab-size", 5000, "--output", tmp_path / "t.json"
    )
    assert code == 0
    assert "too few different pairs for 5,000 tokens" in errors


@pytest.mark.parametrize(
    ("size", "name", "message"),
    [
        (256, "a.txt", "257"),
        (2**40, "a.txt", "at most 4,194,304"),
        (300, "none.txt", "none.txt does not exist"),
        (300, "bad.jsonl", "bad.jsonl:1: not JSON"),
    ],
)
def test_mistakes_leave_no_file(pretrain, tmp_path, size, name, message):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "bad.jsonl").write_text("oops")
    output = tmp_path / "t.json"
    code, _, errors = pretrain("tokenizer", "train", tmp_path / name, "--vocab-size", size, "--output", output)
    assert code == 2
    assert message in errors
    assert len(errors.splitlines()) <= 3
    assert not output.exists()
    assert not list(tmp_path.glob(".*"))


def test_an_existing_file_is_kept_without_force(pretrain, tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    output = tmp_path / "t.json"
    output.write_text("precious")
    command = ["tokenizer", "train", tmp_path / "a.txt", "--vocab-size", 260, "--output", output]
    assert pretrain(*command)[0] == 2
    assert output.read_text() == "precious"
    assert pretrain(*command, "--force")[0] == 0
    assert output.read_text() != "precious"
