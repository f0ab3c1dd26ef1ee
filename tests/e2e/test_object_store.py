"""Runs whose checkpoints and token files are in a bucket of a real server of S3's protocol (moto's), on loopback."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from e2e.conftest import PRETRAIN, ROOT, metrics, overrides, pretrain, tiny
from e2e.s3_line import Line
from pretrain.checkpoint.folder import LATEST

pytestmark = [pytest.mark.full, pytest.mark.slow]
pytest.importorskip("s3fs", reason="s3fs (pretrain[s3]) is not installed")
pytest.importorskip("moto", reason="moto[server] is not installed")
SERVER = """
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""
LOGIN = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def port():
    """Port of a server."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield int(server.stdout.readline())
    server.kill()
    server.wait()


@pytest.fixture
def line(port):
    return Line(port)


@pytest.fixture
def bucket(line, tmp_path, monkeypatch, request):
    """Let this process and those that it starts reach the server by the line; return the name of a new bucket."""
    import s3fs

    for name, value in {**LOGIN, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{line.port}"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PRETRAIN_CACHE", str(tmp_path / "cache"))
    name = f"bucket-{abs(hash(request.node.name)) % 10**9}-{os.getpid()}"
    files().mkdir(name)
    assert isinstance(files(), s3fs.S3FileSystem)
    return name


def files():
    import fsspec

    return fsspec.filesystem("s3", use_listings_cache=False, skip_instance_cache=True)


def put_tokens(tokens, bucket):
    """Copy token files into the bucket; return their address."""
    for path in tokens.parent.glob(f"{tokens.name}.*"):
        files().put_file(str(path), f"{bucket}/data/{path.name}")
    return f"s3://{bucket}/data/{tokens.name}"


def saving(bucket, *, every=10, keep="null", background="false"):
    return f"checkpoint={{save: 's3://{bucket}/run', save_interval: {every}, keep: {keep}, async_save: {background}}}"


def losses(run_dir):
    return {each["iteration"]: each["lm_loss"] for each in metrics(run_dir) if each["kind"] == "train"}


@pytest.fixture(scope="module")
def expected(text_tokens, tmp_path_factory):
    """Losses of the run from local files and with local checkpoints, which is never interrupted."""
    run_dir = tmp_path_factory.mktemp("local") / "run"
    pretrain(*tiny(text_tokens, run_dir, "checkpoint.save_interval=10"))
    assert sorted(losses(run_dir)) == list(range(1, 41))
    return losses(run_dir)


@pytest.mark.parametrize("background", ["false", "true"])
def test_a_run_that_is_killed_in_an_upload_resumes_bit_for_bit(
    text_tokens, tmp_path, bucket, line, expected, background
):
    run = tiny(
        put_tokens(text_tokens, bucket), tmp_path / "run", saving(bucket, every=10, keep=2, background=background)
    )
    process = subprocess.Popen([*PRETRAIN, *map(str, run)], cwd=ROOT, start_new_session=True)

    def kill_in_upload(sent):
        if b"iter_0000030/__0_" in sent and sent.startswith((b"PUT", b"POST")):
            os.killpg(process.pid, signal.SIGKILL)
            return True
        return False

    line.look = kill_in_upload
    assert process.wait() == -signal.SIGKILL
    line.look = lambda _sent: False
    assert files().cat(f"{bucket}/run/{LATEST}").startswith(b"20\n")
    assert not files().exists(f"{bucket}/run/iter_0000030/checksums.txt")
    shutil.rmtree(tmp_path / "cache")  # a node that was lost
    said = pretrain(*run, "--resume")
    assert f"resumed from s3://{bucket}/run/iter_0000020" in said
    assert losses(tmp_path / "run") == expected
    there = sorted(path.rpartition("/")[2] for path in files().ls(f"{bucket}/run"))
    assert there == ["iter_0000030", "iter_0000040", LATEST, "owner.json"]
    assert not list((tmp_path / "run" / "checkpoints").rglob("*.distcp"))


def test_a_connection_that_is_lost_in_an_upload_is_taken_up_again(text_tokens, tmp_path, bucket, line, expected):
    cuts = []

    def cut(sent):
        if b"/run/iter_0000020/__0_0.distcp" in sent and len(cuts) < 12:
            cuts.append(sent)
            return True
        return False

    line.look = cut
    pretrain(*tiny(text_tokens, tmp_path / "run", saving(bucket)))
    assert len(cuts) == 12
    assert losses(tmp_path / "run") == expected
    pretrain("checkpoint", "verify", f"s3://{bucket}/run/iter_0000020")


def test_two_ranks_and_a_changed_object(text_tokens, tmp_path, bucket):
    run = tiny(text_tokens, tmp_path / "run", saving(bucket, every=20, background="true"), "train.exit_interval=40")
    pretrain(*run, "--nproc", "2")
    inside = f"{bucket}/run/iter_0000040"
    content = bytearray(files().cat(f"{inside}/__1_0.distcp"))
    content[len(content) // 2] ^= 1
    files().pipe(f"{inside}/__1_0.distcp", bytes(content))
    said = pretrain(*run, "--resume", "--nproc", "2", "--set", "train.train_iters=60", code=2)
    assert f"s3://{inside}/__1_0.distcp is damaged: its checksum has changed since it was written." in said
    assert f"write 20 into s3://{bucket}/run/{LATEST}, and start again." in said
    files().pipe(f"{bucket}/run/{LATEST}", b"20\n")
    assert f"resumed from s3://{bucket}/run/iter_0000020" in pretrain(*run, "--resume", "--nproc", "2")


def test_a_repeated_command_continues_without_its_run_directory(text_tokens, tmp_path, bucket):
    address = f"s3://{bucket}/run"
    options = f"checkpoint={{save: '{address}', load: '{address}', save_interval: 20}}"
    said = pretrain(*tiny(text_tokens, tmp_path / "first", options, "train.exit_interval=20"))
    assert f"{address}: no checkpoint yet: started from the beginning" in said
    said = pretrain(*tiny(text_tokens, tmp_path / "second", options))
    assert f"continued from {address}/iter_0000020" in said
    assert sorted(losses(tmp_path / "second")) == list(range(21, 41))


def test_commands_read_checkpoints_and_corpora_at_an_address(text_tokens, tmp_path, bucket):
    run_dir, address = tmp_path / "run", f"s3://{bucket}/run"
    pretrain(*tiny(text_tokens, run_dir, saving(bucket, every=40)))
    assert "iteration:  40" in pretrain("checkpoint", "inspect", address)
    assert "checksums match" in pretrain("checkpoint", "verify", address)
    pretrain("checkpoint", "convert", address, tmp_path / "theirs", "--to", "pretrain")
    assert "in every number" in pretrain("checkpoint", "verify", tmp_path / "theirs", "--against", address)
    assert "validation at iteration 40" in pretrain("evaluate", run_dir)
    assert "validation at iteration 40" in pretrain("evaluate", run_dir, "--load", f"{address}/iter_0000040")
    pretrain("generate", run_dir, "--prompt", "ab", "--max-new-tokens", "2")
    pretrain(*tiny(text_tokens, tmp_path / "tuned", f"checkpoint={{load: '{address}', finetune: true}}"))
    corpus = text_tokens.parent / "text.jsonl"
    files().put_file(str(corpus), f"{bucket}/corpus/text.jsonl")
    for number, given in enumerate(["text.jsonl", "*.jsonl", ""]):
        source = f"s3://{bucket}/corpus/{given}".rstrip("/")
        options = ("--tokenizer-type", "bytes", "--append-eod", "--workers", "1")
        pretrain("data", "build", "--input", source, "--output-prefix", tmp_path / str(number), *options)
        built = tmp_path / f"{number}_text_document.bin"
        assert built.read_bytes() == text_tokens.with_name(f"{text_tokens.name}.bin").read_bytes()


@pytest.mark.parametrize(
    ("settings", "variables", "lines"),
    [
        (["checkpoint.save=s3://absent/run"], {}, ["s3://absent/run cannot be written: ", "Make the bucket, or "]),
        (["checkpoint.load=s3://absent/run"], {}, ["s3://absent/run cannot be read: ", "Make the bucket, or "]),
        (["data.path=s3://BUCKET/x"], {}, ["token file s3://BUCKET/x.bin is missing.", "Build it, and copy both"]),
        (
            ["checkpoint.save=s3://BUCKET/run"],
            {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"},
            ["s3://BUCKET/run cannot be written: ", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or log in"],
        ),
    ],
    ids=["save", "load", "tokens", "login"],
)
def test_what_cannot_be_reached_is_two_lines_before_the_first_step(
    text_tokens, tmp_path, bucket, settings, variables, lines
):
    settings = [each.replace("BUCKET", bucket) for each in settings]
    environment = {"HOME": str(tmp_path), **variables}
    run = [*tiny(text_tokens, tmp_path / "run"), *overrides(*settings)]
    said = pretrain(*run, code=2, environment=environment).splitlines()
    assert len(said) == 2
    for line_, begin in zip(said, lines, strict=True):
        assert line_.startswith(begin.replace("BUCKET", bucket)), json.dumps(said)
