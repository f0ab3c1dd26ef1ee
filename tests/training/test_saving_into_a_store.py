"""A run's checkpoints in a store: complete or absent, whatever happens at any moment."""

import itertools
import shutil

import pytest

from pretrain.checkpoint import checksums, storage
from pretrain.checkpoint.folder import LATEST
from pretrain.checkpoint.owner import claim, require_own
from pretrain.checkpoint.stored_folder import StoredFolder, checkpoint_folder
from pretrain.errors import CheckpointError, DamageError, StoreError
from pretrain.stores.object_store import ObjectStore
from pretrain.training.progress import Progress
from pretrain.training.saving import Saving, load_latest
from stores.conftest import memory  # noqa: F401  a fixture
from training.test_saving import FakeEngine, files_of_fake_engines  # noqa: F401  fixtures too

pytestmark = pytest.mark.usefixtures("alone", "memory")
ADDRESS = "memory://b/run"


class KilledError(BaseException):
    """End of a process at this moment."""


@pytest.fixture(autouse=True)
def sent_files(monkeypatch):
    """Let the storage write what a FakeEngine has, and send it as the real one does."""

    def save(engine, directory, progress, send):
        engine.save(directory, progress)
        for file in sorted(directory.iterdir(), key=lambda file: (file.name == checksums.FILE, file.name)):
            send(file)

    monkeypatch.setattr(storage, "save", save)


@pytest.fixture
def folder(tmp_path):
    return StoredFolder(tmp_path / "run" / "checkpoints", None, ADDRESS)


def save(folder, *iterations):
    saving = Saving(folder, rank=0)
    return [saving.save(FakeEngine(), Progress(iteration=iteration)) for iteration in iterations]


def load(folder):
    engine = FakeEngine()
    found = load_latest(folder, engine)
    return None if found is None else (found[0], *engine.loaded[0])


def names():
    return {each.name for each in ObjectStore(ADDRESS).objects()}


def test_a_saved_checkpoint_is_loaded_and_nothing_of_it_stays_on_the_node(folder, tmp_path):
    assert load(folder) is None
    assert save(folder, 10, 20) == [f"{ADDRESS}/iter_0000010", f"{ADDRESS}/iter_0000020"]
    assert folder.iterations() == [10, 20]
    assert load(folder) == (f"{ADDRESS}/iter_0000020", "iter_0000020", False)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_kill_before_any_write_leaves_the_older_checkpoint_the_latest(folder, monkeypatch):
    save(folder, 10)
    changes = ("put", "write", "remove")
    works = {name: getattr(ObjectStore, name) for name in changes}
    for survived in itertools.count():
        left = itertools.count(survived, -1)

        def killed(name, left=left):
            def change(*arguments):
                if next(left) == 0:
                    raise KilledError
                return works[name](*arguments)

            return change

        with monkeypatch.context() as context:
            for name in changes:
                context.setattr(ObjectStore, name, killed(name))
            try:
                save(folder, 20)
            except KilledError:
                assert folder.latest() == 10
                assert load(folder)[1] == "iter_0000010"
                complete = f"iter_0000020/{checksums.FILE}" in names()
                assert folder.iterations() == ([10, 20] if complete else [10])
                continue
        break
    assert survived >= 6  # five files and LATEST
    assert load(folder)[1] == "iter_0000020"


def test_what_a_killed_save_has_left_is_replaced(folder):
    save(folder, 10)
    store = ObjectStore(f"{ADDRESS}/iter_0000020")
    store.write("__7_0.distcp", b"of a run with eight ranks")
    store.write("common.pt", b"old")
    save(folder, 20)
    assert "iter_0000020/__7_0.distcp" not in names()
    assert load(folder)[1] == "iter_0000020"


def test_older_ones_are_removed_only_after_the_newer_is_complete_and_named(tmp_path, monkeypatch):
    folder = StoredFolder(tmp_path, 2, ADDRESS)
    ObjectStore(ADDRESS).write("iter_0000005/common.pt", b"of a killed run")
    removed, remove = [], ObjectStore.remove

    def recorded(store, gone):
        removed.extend(gone)
        assert not gone or folder.latest() == 30
        remove(store, gone)

    save(folder, 10, 20)
    monkeypatch.setattr(ObjectStore, "remove", recorded)
    save(folder, 30)
    assert folder.iterations() == [20, 30]
    assert {name.partition("/")[0] for name in removed} == {"iter_0000010"}
    assert removed[0] == f"iter_0000010/{checksums.FILE}"  # from then on it is not complete
    assert "iter_0000005/common.pt" not in names()


def test_a_checkpoint_of_an_abandoned_part_is_not_removed(tmp_path):
    save(StoredFolder(tmp_path, None, ADDRESS), 10, 20, 30)
    save(StoredFolder(tmp_path, 1, ADDRESS), 20)
    assert StoredFolder(tmp_path, 1, ADDRESS).iterations() == [20, 30]


def test_a_changed_object_is_damage_and_the_newest_intact_one_is_named(folder, memory):  # noqa: F811
    save(folder, 10, 20)
    content = memory.cat("/b/run/iter_0000020/common.pt")
    memory.pipe("/b/run/iter_0000020/common.pt", content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamageError) as error:
        load(folder)
    assert str(error.value) == (
        f"{ADDRESS}/iter_0000020/common.pt is damaged: its checksum has changed since it was written.\n"
        f"The newest intact checkpoint is iteration 10: write 10 into {ADDRESS}/{LATEST}, and start again."
    )
    memory.pipe(f"/b/run/{LATEST}", b"10\n")
    assert load(folder)[1] == "iter_0000010"


def test_a_copy_that_the_disk_has_damaged_is_not_kept(folder, monkeypatch):
    save(folder, 10)

    def damaged(_engine, directory, **_options):
        (directory / "common.pt").write_bytes(b"")
        storage.opened(directory)

    with monkeypatch.context() as context:
        context.setattr(storage, "load", damaged)
        with pytest.raises(DamageError):
            load(folder)
    assert load(folder)[1] == "iter_0000010"


@pytest.mark.parametrize("iteration", ["30", "x"])
def test_a_latest_file_that_names_none_says_which_there_are(folder, iteration):
    save(folder, 10)
    ObjectStore(ADDRESS).write(LATEST, iteration.encode())
    with pytest.raises(CheckpointError, match=rf"^{ADDRESS}/{LATEST} .*\nWrite one of these iterations into it: 10\.$"):
        folder.latest()


def test_another_run_may_not_save_there(make, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    recipe = make(f"checkpoint.save={ADDRESS}")
    for run_dir in (first, second):
        run_dir.mkdir()
    claim(recipe, first, resume=False)
    claim(recipe, first, resume=True)
    with pytest.raises(CheckpointError, match=rf"^checkpoint.save: {ADDRESS} has the checkpoints of another run"):
        require_own(recipe, second, resume=False)
    require_own(make(f"checkpoint.save={ADDRESS}", f"checkpoint.load={ADDRESS}/"), second, resume=False)


def test_commands_copy_the_latest_one_alone_and_verify_it(folder, memory, monkeypatch):  # noqa: F811
    monkeypatch.setattr("pretrain.checkpoint.stored_folder.same_for_ranks", lambda _address, copied: copied())
    save(folder, 10, 20)
    copy = checkpoint_folder(ADDRESS)
    assert sorted(each.name for each in copy.iterdir()) == ["iter_0000020", LATEST]
    one = checkpoint_folder(f"{ADDRESS}/iter_0000010")
    assert (one.name, checksums.damage_in_share(one)) == ("iter_0000010", None)
    shutil.rmtree(copy)
    memory.pipe("/b/run/iter_0000020/progress", b"other")
    with pytest.raises(DamageError, match=rf"^{ADDRESS}/iter_0000020/progress is damaged"):
        checkpoint_folder(ADDRESS)


def test_a_store_that_takes_nothing_is_found_before_the_training(folder, monkeypatch):
    def refused(*_arguments):
        raise StoreError("refused")

    monkeypatch.setattr(ObjectStore, "write", refused)
    with pytest.raises(StoreError):
        folder.require_writable()
