"""Every command that reads a checkpoint refuses every damage to it: a matrix of both."""

from __future__ import annotations

import os
import shutil
from itertools import groupby

import pytest
import torch
from click.testing import CliRunner

from engine import tiny
from pretrain.checkpoint import checksums, storage
from pretrain.checkpoint.folder import LATEST, tracked
from pretrain.errors import DamageError
from pretrain.tools.convert.commands import command

NAMED, OTHER = "iter_0000004", "iter_0000002"
SHARD = "__0_0.distcp"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder of two checkpoints; its latest is 4."""
    folder = tmp_path_factory.mktemp("whole") / "checkpoints"
    with tiny.engine_of(tiny.tiny("model.num_layers=1")) as engine:
        for iteration in (2, 4):
            tiny.train(engine, iteration - 2, iteration)
            tiny.save(engine, folder / f"iter_{iteration:07d}", iteration)
    (folder / LATEST).write_text(tracked("4"))
    return folder


@pytest.fixture(scope="module")
def engine():
    """A model for the checkpoints."""
    with tiny.engine_of(tiny.tiny("model.num_layers=1")) as built:
        yield built


@pytest.fixture
def copy(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "copy")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)


def replace(file, make):
    file.unlink()
    make(file)


def exchange(folder):
    (folder / NAMED).rename(folder / "spare")
    (folder / OTHER).rename(folder / NAMED)
    (folder / "spare").rename(folder / OTHER)


DAMAGES = {
    **{
        f"a bit of {name}": lambda folder, name=name: flip(folder / NAMED / name)
        for name in (SHARD, ".metadata", "common.pt", "metadata.json", checksums.FILE)
    },
    "a shard of another iteration": lambda folder: shutil.copy(folder / OTHER / SHARD, folder / NAMED / SHARD),
    "common.pt of another iteration, with checksums": lambda folder: signed(folder, OTHER),
    "two folders exchanged": exchange,
    "a shard cut off": lambda folder: os.truncate(folder / NAMED / SHARD, 1000),
    "no shard": lambda folder: (folder / NAMED / SHARD).unlink(),
    "a pipe as a shard": lambda folder: replace(folder / NAMED / SHARD, os.mkfifo),
    "a device as a shard": lambda folder: replace(folder / NAMED / SHARD, lambda file: file.symlink_to("/dev/zero")),
    "no checksums": lambda folder: (folder / NAMED / checksums.FILE).unlink(),
    "a folder as checksums": lambda folder: replace(folder / NAMED / checksums.FILE, os.mkdir),
    "a pipe as checksums": lambda folder: replace(folder / NAMED / checksums.FILE, os.mkfifo),
    "a device as checksums": lambda folder: replace(
        folder / NAMED / checksums.FILE, lambda file: file.symlink_to("/dev/zero")
    ),
}


def signed(folder, other):
    shutil.copy(folder / other / "common.pt", folder / NAMED / "common.pt")
    (folder / NAMED / checksums.FILE).unlink()
    checksums.write(folder / NAMED, {})


def call(*arguments):
    return CliRunner().invoke(command, list(map(str, arguments)), standalone_mode=False, catch_exceptions=False)


READERS = {
    "convert": lambda folder, whole: call("convert", folder, folder.parent / "target", "--to", "huggingface"),
    "verify": lambda folder, whole: call("verify", folder),
    "verify --against it": lambda folder, whole: call("verify", whole, "--against", folder),
    "inspect": lambda folder, whole: call("inspect", folder),
    "recipe": lambda folder, whole: call("recipe", folder),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_whole_checkpoint_is_read(copy, whole, reader):
    result = READERS[reader](copy, whole)
    assert (result.return_value or 0) == 0, result.output


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_one_is_refused(copy, whole, reader, damage):
    DAMAGES[damage](copy)
    with pytest.raises(DamageError, match=NAMED) as error:
        READERS[reader](copy, whole)
    assert 1 <= str(error.value).count("\n") <= 2
    assert not (copy.parent / "target").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_does_not_start_from_a_damaged_one(copy, engine, damage):
    """Resume, load, evaluate and generate read by this function."""
    DAMAGES[damage](copy)
    before = engine.parameters_norm().item()
    with pytest.raises(DamageError, match=NAMED):
        storage.load(engine, copy / NAMED, weights_only=True)
    assert engine.parameters_norm().item() == before


def test_a_look_reads_no_large_file_but_compares_its_size(copy):
    """`inspect` and `recipe` say so; a checkpoint may have terabytes."""
    folder, look = copy / NAMED, checksums.Share(up_to=10_000)
    flip(folder / SHARD)
    assert checksums.damage_in_share(folder, look) is None
    flip(folder / "metadata.json")
    assert checksums.damage_in_share(folder, look).startswith(f"{folder / 'metadata.json'} is damaged")
    flip(folder / "metadata.json")
    os.truncate(folder / SHARD, 20_000)
    assert "20000 bytes instead of" in checksums.damage_in_share(folder, look)


@pytest.mark.parametrize("to", ["pretrain", "megatron", "torch_dist", "deepspeed", "huggingface"])
def test_what_is_converted_has_checksums_of_all_its_files(copy, tmp_path, to):
    call("convert", copy, tmp_path / "target", "--to", to)
    (found,) = (tmp_path / "target").rglob(checksums.FILE)
    result = call("verify", tmp_path / "target", "--against", copy)
    assert "checksums match" in result.output, result.output
    for file in sorted(path for path in found.parent.rglob("*") if path.is_file()):
        flip(file)
        with pytest.raises(DamageError, match=f"{file.name} is damaged"):
            call("verify", tmp_path / "target")
        flip(file)
    assert call("convert", tmp_path / "target", tmp_path / "back", "--to", "pretrain").return_value is None


def test_a_conversion_says_that_it_verifies_and_then_writes(copy, tmp_path, monkeypatch):
    """A source is read twice."""
    monkeypatch.setattr("pretrain.report.console.LINE_EVERY", 0.0)
    told = call("convert", copy, tmp_path / "hf", "--to", "huggingface").stderr.splitlines()
    assert list(dict.fromkeys(line.split()[0] for line in told)) == ["verified", "written"]
    told = call("verify", tmp_path / "hf", "--against", copy).stderr.splitlines()
    assert [word for word, _ in groupby(line.split()[0] for line in told)] == [
        "verified",
        "read",
        "verified",
        "compared",
    ]


def test_files_of_other_programs_that_lack_checksums_are_told(copy, tmp_path):
    call("convert", copy, tmp_path / "hf", "--to", "huggingface")
    (tmp_path / "hf" / checksums.FILE).unlink()
    assert "1 file has no checksums (model.safetensors)" in call("verify", tmp_path / "hf").output


def test_checksums_of_another_program_are_not_taken_for_ours(copy, tmp_path):
    """Models are published with the output of sha256sum."""
    call("convert", copy, tmp_path / "hf", "--to", "huggingface")
    file = tmp_path / "hf" / checksums.FILE
    file.write_text(f"{'0' * 64}  config.json\n{'0' * 64}  model.safetensors\n")
    told = f"{file} is another program's and was not used\n"
    assert told in call("verify", tmp_path / "hf").output
    assert told in call("verify", copy, "--against", tmp_path / "hf").output
    assert "checksums.txt is another program's" in call("inspect", tmp_path / "hf").output
    call("convert", tmp_path / "hf", tmp_path / "there", "--to", "pretrain")
    shutil.copy(file, tmp_path / "there" / checksums.FILE)
    (ours,) = (tmp_path / "there").rglob("common.pt")
    shutil.copy(file, ours.parent)
    with pytest.raises(DamageError, match=r"is another program's\.\nCopy the checkpoint's own there, or take another"):
        call("verify", tmp_path / "there")


def test_a_flipped_byte_in_a_file_of_torch_is_found_by_its_own_checksum(copy, tmp_path):
    call("convert", copy, tmp_path / "there", "--to", "megatron")
    (found,) = (tmp_path / "there").rglob(checksums.FILE)
    found.unlink()
    assert "checksums match" in call("verify", tmp_path / "there").output
    file = found.parent / "mp_rank_00" / "model_optim_rng.pt"
    flip(file)
    assert torch.load(file, weights_only=False) is not None  # torch does not see it
    for arguments in (("verify",), ("convert", tmp_path / "target", "--to", "huggingface")):
        name, *rest = arguments
        with pytest.raises(DamageError, match=r"model_optim_rng.pt is damaged: .*data/\d+"):
            call(name, tmp_path / "there", *rest)
