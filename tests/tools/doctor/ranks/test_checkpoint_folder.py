"""The doctor looks at the folder of the checkpoints: writable, shared, with space, fast enough; nothing stays there."""

import errno
import os
import resource
from types import SimpleNamespace

import pytest

from pretrain.launch.start_checks import Start
from pretrain.recipe import make_recipe
from pretrain.tools.doctor.finding import Verdict
from pretrain.tools.doctor.ranks import checkpoint_folder
from pretrain.tools.doctor.ranks.checkpoint_folder import FolderProbe, checkpoint_bytes, judge_seen, judge_written
from recipe.smallest import SMALLEST

SIZE = 1 << 20


def probe_of(folder, rank=0):
    recipe = make_recipe(SMALLEST, [f"checkpoint.save={folder}"])
    probe = FolderProbe(Start(recipe=recipe, run_dir=None, resume="no"), rank)
    probe.run = "run"
    return probe


def written(folder, rank=0):
    probe = probe_of(folder, rank)
    try:
        return {rank: probe.write(lambda _: None)}
    finally:
        probe.remove()


@pytest.fixture(autouse=True)
def on_a_disk(monkeypatch, tmp_path):
    """The temporary folder of the tests may be in memory. Files are small."""
    monkeypatch.setattr(checkpoint_folder, "_WRITTEN", SIZE)
    mounts = tmp_path.parent / "mounts"
    mounts.write_text("/dev/sda1 / ext4 rw 0 0\n")
    monkeypatch.setattr(checkpoint_folder, "_MOUNTS", mounts)


def test_a_folder_with_space_is_ok_and_left_empty(tmp_path):
    found = judge_written(written(tmp_path), needed=100_000)
    assert [each.verdict for each in found] == [Verdict.OK, Verdict.OK]
    assert "two checkpoints of this recipe need 0.2 MB" in found[0].text
    assert not list(tmp_path.iterdir())


def test_a_folder_that_a_run_will_make_is_looked_at_where_it_will_be(tmp_path):
    assert probe_of(tmp_path / "new" / "folder").folder == tmp_path
    assert not list(tmp_path.iterdir())


def test_too_little_space_is_wrong_and_says_how_much_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=10_000, f_frsize=4096))  # 0.04 GB
    found = judge_written(written(tmp_path), needed=2_000_000_000)[0]
    assert (found.verdict, found.ranks) == (Verdict.WRONG, (0,))
    assert "41.0 MB free" in found.text
    assert found.remedy.startswith("free 4.0 GB")


def answer(rate):
    return {"host": "a", "folder": "/x", "error": "", "rate": rate, "free": 1e12, "in_memory": False}


@pytest.mark.parametrize(("needed", "verdict"), [(1_000_000_000, Verdict.OK), (2_000_000_000, Verdict.LOOK)])
def test_a_disk_is_slow_where_a_checkpoint_takes_long(needed, verdict):
    space, speed = judge_written({0: answer(1e7)}, needed)
    assert (space.verdict, speed.verdict) == (Verdict.OK, verdict)
    text = f"10 MB/s are written to the disk: a checkpoint of {needed / 1e9} GB takes about {needed // 10**7} s"
    assert speed.text == text


def test_a_folder_in_memory_is_looked_at(tmp_path, monkeypatch):
    (tmp_path / "a b").mkdir()
    place = str(tmp_path / "a b").replace(" ", "\\040")
    checkpoint_folder._MOUNTS.write_text(f"/dev/sda1 / ext4 rw 0 0\ntmpfs {place} tmpfs rw 0 0\n")
    found = judge_written(written(tmp_path / "a b" / "new"), needed=1000)[1]
    assert (found.verdict, found.ranks) == (Verdict.LOOK, (0,))
    assert "is in memory: checkpoints are lost" in found.text


def test_a_folder_that_cannot_be_looked_at_is_a_finding(tmp_path):
    """Its name is too long: an error already of the question whether it exists."""
    folder = tmp_path / ("x" * 300)
    (found,) = judge_written(written(folder), needed=1)
    assert found.text.endswith(f"cannot write into {folder}: {os.strerror(errno.ENAMETOOLONG)}")
    assert found.remedy == "shorten its name, or name another folder: checkpoint.save"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make space, "),
        (errno.EDQUOT, "make space in this user's quota"),
        (errno.ENOTDIR, "remove the file of that name"),
        (errno.EACCES, "make it writable"),
    ],
)
def test_the_remedy_is_that_of_the_error(number, remedy):
    answers = {0: {"host": "a", "folder": "/x", "error": "words of another language", "errno": number, "rate": None}}
    (found,) = judge_written(answers, needed=1)
    assert found.remedy.startswith(remedy)


def test_one_rank_removes_the_files_of_all(tmp_path):
    """Another one may be stopped."""
    probes = [probe_of(tmp_path, rank) for rank in range(2)]
    for probe in probes:
        probe.write(lambda _: None)
    other = probe_of(tmp_path, 2)
    other.run = "other run"
    other.write(lambda _: None)
    probes[0].remove()
    assert [file.name for file in tmp_path.iterdir()] == [".pretrain-doctor-other run-2"]


def test_a_disk_that_is_full_while_writing_is_wrong(tmp_path):
    """A limit on the size of files stands for the end of the disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE // 2, before[1]))
    try:
        answers = written(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (found,) = judge_written(answers, needed=1)
    assert found.verdict is Verdict.WRONG
    assert found.text.endswith(f"cannot write into {tmp_path}: {os.strerror(errno.EFBIG)}")
    assert found.remedy.startswith("make space")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_wrong(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    (found,) = judge_written(written(tmp_path), needed=1)
    assert "No space left on device" in found.text
    assert found.remedy.startswith("make space")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_another_user_is_wrong(tmp_path):
    tmp_path.chmod(0o555)
    (found,) = judge_written(written(tmp_path), needed=1)
    assert found.remedy.startswith("make it writable")


def test_ranks_that_share_a_folder_see_each_other_and_others_do_not(tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    for folders, verdict in (((tmp_path, tmp_path), Verdict.OK), ((tmp_path, other), Verdict.WRONG)):
        probes = [probe_of(folder, rank) for rank, folder in enumerate(folders)]
        for probe in probes:
            probe.write(lambda _: None)
        seen = {rank: probe.unseen([0, 1], lambda _: None, 0) for rank, probe in enumerate(probes)}
        for probe in probes:
            probe.remove()
        (found,) = judge_seen(seen)
        assert found.verdict is verdict
    assert f"in {tmp_path} what rank 1 " in found.text
    assert list(tmp_path.iterdir()) == [other]


@pytest.mark.parametrize(("dtype", "of_parameter"), [("fp32", 12), ("bf16", 14)])
def test_a_checkpoint_holds_weights_main_weights_and_moments(dtype, of_parameter):
    recipe = make_recipe(SMALLEST, [f"precision.dtype={dtype}"])
    assert checkpoint_bytes(recipe) % of_parameter == 0
    hidden, layers, rows = 64, 2, recipe.padded_vocab_size(257)
    parameters = checkpoint_bytes(recipe) / of_parameter
    assert parameters > 12 * layers * hidden**2 + rows * hidden
    assert parameters < 1.2 * (12 * layers * hidden**2 + 2 * rows * hidden + 64 * hidden)


def test_without_its_tokenizer_the_size_of_a_checkpoint_is_not_known(tmp_path):
    recipe = make_recipe(SMALLEST, ["tokenizer.type=huggingface", f"tokenizer.file={tmp_path / 'none.json'}"])
    assert checkpoint_bytes(recipe) is None
    assert judge_written({0: answer(1e9)}, None)[0].verdict is Verdict.LOOK
