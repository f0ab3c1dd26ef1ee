"""Any change of a checkpoint's file is detected, by one of the ranks that share the reading."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretrain.checkpoint import checksums
from pretrain.checkpoint.checksums import (
    FileDigest,
    Recorder,
    Share,
    _in_share,
    damage_in_share,
    digest_of,
    file_digest,
)

SIZES = {"common.pt": 70, "metadata.json": 11, ".metadata": 300, "__0_0.distcp": 5000, "__1_0.distcp": 2_500_000}


@pytest.fixture
def directory(tmp_path):
    """A folder of files with their checksums."""
    draw = random.Random(0)
    for name, size in SIZES.items():
        (tmp_path / name).write_bytes(draw.randbytes(size))
    checksums.write(tmp_path, {})
    return tmp_path


def flip(path, place):
    """Flip one bit of a file."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def found(directory, ranks):
    return [problem for rank in range(ranks) if (problem := damage_in_share(directory, Share(rank, ranks)))]


@pytest.mark.parametrize("ranks", [1, 2, 3, 16])
def test_an_undamaged_checkpoint_is_intact(directory, ranks):
    assert found(directory, ranks) == []


@pytest.mark.parametrize("ranks", [1, 3, 16])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("place", [0, -1])
def test_a_flipped_bit_is_found_by_one_rank(directory, ranks, name, place):
    flip(directory / name, place)
    problem = f"{directory / name} is damaged: its checksum has changed since it was written."
    assert found(directory, ranks) == [problem]


@pytest.mark.parametrize("name", SIZES)
def test_a_missing_or_truncated_file_is_found_by_one_rank(directory, name):
    (directory / name).write_bytes((directory / name).read_bytes()[:-1])
    problem = f"{directory / name} is damaged: {SIZES[name] - 1} bytes instead of {SIZES[name]}."
    assert found(directory, 2) == [problem]
    (directory / name).unlink()
    assert found(directory, 2) == [f"{directory / name} is missing."]


def test_every_flipped_bit_of_the_checksums_is_found(directory):
    file = directory / checksums.FILE
    for place in range(file.stat().st_size):
        flip(file, place)
        assert found(directory, 2) == [f"{file} is damaged: it does not match its own checksum."] * 2
        flip(file, place)
    assert found(directory, 2) == []


@pytest.mark.parametrize("content", [b"", b"\n", b"no checksums\n" * 3])
def test_malformed_checksums_are_damage(directory, content):
    (directory / checksums.FILE).write_bytes(content)
    assert found(directory, 1) == [f"{directory / checksums.FILE} is damaged: it does not match its own checksum."]


def test_what_is_left_of_ours_is_ours(directory):
    file = directory / checksums.FILE
    content = file.read_bytes()
    half = len(content) // 2
    for left in (b"", b"\n", content[:half], content[half:], content[:20] + b"\0" * half, b"\xff" * half):
        file.write_bytes(left)
        assert checksums.are_there(directory)
    for place in range(len(content)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert checksums.are_there(directory)


@pytest.mark.parametrize(
    "theirs",
    [
        f"{'0' * 64}  model.safetensors\n",
        f"{'0' * 32} *model.safetensors\n",
        f"SHA256 (model.safetensors) = {'0' * 64}",
        "made on Tuesday\n" * 10_000,
    ],
    ids=["sha256sum", "md5sum", "BSD", "long"],
)
def test_checksums_of_another_program(directory, theirs):
    (directory / checksums.FILE).write_text(theirs)
    assert checksums.are_foreign(directory)
    assert not checksums.are_there(directory)


def test_the_bytes_that_are_read_are_known(directory):
    size = (directory / "common.pt").stat().st_size
    total = checksums.bytes_of(directory)[1]
    assert checksums.bytes_of(directory) == (total, total)
    assert checksums.bytes_of(directory, checksums.Share(up_to=size - 1))[0] < size


@pytest.mark.parametrize("name", ["/dev/zero", "..", "a/../../b", "x\0"])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path, name):
    (tmp_path / "inside").touch()
    checksums.write(tmp_path, {name: FileDigest("0" * 32, 12)})
    assert found(tmp_path, 1) == [
        f"{tmp_path / checksums.FILE} is damaged: it names {name!r}, which is not a file of its folder."
    ]


def test_a_line_without_a_size_is_damage(tmp_path):
    checksums.write(tmp_path, {"file": FileDigest("0" * 32, "many")})
    assert found(tmp_path, 1) == [f"{tmp_path / checksums.FILE} is damaged: a line is not a digest, a size and a name."]


def test_a_device_in_place_of_a_file_is_not_read(directory):
    (directory / "common.pt").unlink()
    (directory / "common.pt").symlink_to("/dev/zero")
    assert found(directory, 1) == [f"{directory / 'common.pt'} is damaged: it is not a file."]


def test_ranks_share_the_bytes(tmp_path, monkeypatch):
    for number in range(64):
        (tmp_path / f"__{number}_0.distcp").write_bytes(b"x" * (1000 + number))
    checksums.write(tmp_path, {})
    read = []
    monkeypatch.setattr(checksums, "file_digest", lambda path, _: (read.append(path.name), file_digest(path))[1])
    shares = []
    for rank in range(8):
        assert damage_in_share(tmp_path, Share(rank, 8)) is None
        shares.append(sum((tmp_path / name).stat().st_size for name in read))
        read.clear()
    assert max(shares) - min(shares) < 64


@given(st.lists(st.integers(0, 10**12), max_size=60), st.integers(1, 40))
def test_every_file_has_one_rank_and_none_has_a_file_more_than_the_one_with_the_least(sizes, ranks):
    files = {f"__{number}_0.distcp": FileDigest("0" * 32, size) for number, size in enumerate(sizes)}
    shares = [_in_share(files, Share(rank, ranks)) for rank in range(ranks)]
    assert sorted(name for share in shares for name in share) == sorted(files)
    loads = [sum(files[name].size for name in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)


def test_a_look_reads_a_number_of_bytes_in_all_and_tensors_last(tmp_path):
    """A checkpoint of many ranks may have a thousand small files of tensors, and an index that is larger than each."""
    sizes = {".metadata": 3000, "metadata.json": 10} | {f"__{number}_0.distcp": 1000 for number in range(64)}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"x" * size)
    checksums.write(tmp_path, {})
    read = []
    look = Share(up_to=5500, begin=lambda total, what: (read.append((total, what)), read.append)[1])
    assert damage_in_share(tmp_path, look) is None
    assert read[0] == (5010, "verified")
    assert sorted(read[1:]) == [10, 1000, 1000, 3000]
    flip(tmp_path / ".metadata", 0)
    assert damage_in_share(tmp_path, look).startswith(f"{tmp_path / '.metadata'} is damaged")


def test_a_file_is_digested_while_it_is_written(tmp_path):
    recorder = Recorder()
    parts = [b"", b"a", bytearray(b"bc"), memoryview(b"def" * 100_000)]
    with recorder.open(str(tmp_path / "file"), "wb") as file:
        for part in parts:
            file.write(part)
        assert file.tell() == 300_003
    assert recorder.files == {"file": file_digest(tmp_path / "file")}
    assert recorder.files["file"].digest == digest_of(b"abc" + b"def" * 100_000)


def test_fsync_comes_after_a_flush(tmp_path):
    with Recorder().open(tmp_path / "file", "wb") as file:
        file.write(b"abc")
        file.fileno()  # as os.fsync is given it
        assert (tmp_path / "file").read_bytes() == b"abc"


def test_a_file_that_failed_is_not_recorded(tmp_path):
    recorder = Recorder()
    with pytest.raises(OSError, match="full"), recorder.open(tmp_path / "file", "wb"):
        raise OSError("the disk is full")
    assert recorder.files == {}
