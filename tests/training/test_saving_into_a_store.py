"""A run's checkpoints in a store: complete or absent, whatever happens at any moment."""

import itertools
import shutil

import pytest

from engine import tiny
from pretrain.checkpoint import checksums, starting_checkpoint, storage
from pretrain.checkpoint.folder import LATEST, CheckpointFolder
from pretrain.checkpoint.owner import claim, require_own
from pretrain.checkpoint.stored_folder import (
    StoredFolder,
    checkpoint_folder,
    checkpoint_folder_of_ranks,
    folder_of_run,
)
from pretrain.cli import evaluate
from pretrain.errors import CheckpointError, DamageError, StoreError
from pretrain.launch.start_checks import CHECKS, Start
from pretrain.recipe import to_yaml
from pretrain.stores.local_copies import shown_place
from pretrain.stores.object_store import ObjectStore
from pretrain.tools.convert.registry import one_checkpoint
from pretrain.training.progress import Progress
from pretrain.training.saving import Saving, load_latest, start_from
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


@pytest.fixture
def got(monkeypatch):
    """Return the list of names that are copied from now on; each command chooses anew."""
    names, get = [], ObjectStore.get
    monkeypatch.setattr("pretrain.checkpoint.stored_folder.same_for_ranks", lambda _address, copied: copied())
    monkeypatch.setattr(ObjectStore, "get", lambda store, targets: (names.extend(targets), get(store, targets)))
    return names


def test_a_latest_file_that_names_none_copies_nothing(folder, got):
    save(folder, 10, 20)
    folder.name_none("replicas differed after 5")
    message = rf"^{ADDRESS}/{LATEST} holds 'replicas differed after 5', not .*\nWrite one of .* into it: 10, 20\.$"
    with pytest.raises(CheckpointError, match=message):
        checkpoint_folder(ADDRESS)
    assert got == []


def test_both_trackers_of_megatron_deepspeed_are_copied(got):
    store = ObjectStore(ADDRESS)
    for name, content in {LATEST: b"5", "latest": b"global_step5", "global_step5/x": b""}.items():
        store.write(name, content)
    checkpoint_folder(ADDRESS)
    assert sorted(got) == ["global_step5/x", "latest", LATEST]


def load_given(make, tmp_path):
    """Start a run from the checkpoints at the address; return the remark."""
    return start_from(make(f"checkpoint.load={ADDRESS}"), FakeEngine(), tmp_path / "mine", resume=False)[1]


def test_load_is_copied_by_one_rank_of_a_node_while_the_others_wait_a_day(folder, make, tmp_path, monkeypatch, got):
    waits = []
    monkeypatch.setattr("pretrain.checkpoint.agreement.between_hosts", lambda _what, minutes: waits.append(minutes))
    save(folder, 10)
    monkeypatch.setenv("LOCAL_RANK", "1")
    copy = checkpoint_folder_of_ranks(ADDRESS)
    assert (got, waits) == ([], [24 * 60])
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert load_given(make, tmp_path) == f"continued from {ADDRESS}/iter_0000010"
    assert sorted(each.name for each in copy.iterdir()) == ["iter_0000010", LATEST]


def test_nodes_copy_what_the_first_rank_has_chosen(folder, monkeypatch):
    save(folder, 10)
    chosen = ObjectStore(ADDRESS).objects()
    save(folder, 20)
    monkeypatch.setattr("pretrain.collectives.on_rank0", lambda _choose: chosen)
    with pytest.raises(StoreError, match="has changed while it was copied"):
        checkpoint_folder_of_ranks(ADDRESS)


def test_a_damaged_copy_of_load_is_told_from_a_damaged_object(folder, make, tmp_path):
    save(folder, 10)
    load_given(make, tmp_path)
    copy = checkpoint_folder_of_ranks(ADDRESS)
    (copy / "iter_0000010" / "progress").write_text("of a broken disk")
    with pytest.raises(DamageError) as error:
        load_given(make, tmp_path)
    advice = f"It is this node's copy of {ADDRESS}: remove {copy.parent}, and start again."
    assert str(error.value).splitlines()[1] == advice
    shutil.rmtree(copy.parent)
    assert load_given(make, tmp_path) == f"continued from {ADDRESS}/iter_0000010"


def test_a_resume_needs_no_checkpoint_of_load(make, tmp_path, monkeypatch):
    recipe, seen = make("checkpoint.load=memory://b/gone", "checkpoint.finetune=true"), []
    save(folder_of_run(recipe, tmp_path), 10)
    monkeypatch.setattr(
        starting_checkpoint,
        "require_of_recipe",
        lambda path, _recipe, _size, *, weights_only: seen.append((path.name, weights_only)),
    )
    check = next(each for each in CHECKS if each.name == "starting checkpoint")
    check.look(Start(recipe=recipe, run_dir=tmp_path, resume="run"))
    assert seen == [("iter_0000010", False)]


def test_what_is_wrong_with_load_is_told_by_its_address(folder, got):
    save(folder, 10)
    memory_of = {"empty/x": b"", f"part/{LATEST}": b"10", "part/iter_0000010/common.pt": b""}
    for name, content in memory_of.items():
        ObjectStore("memory://b").write(name, content)
    messages = {
        "empty": rf"^checkpoint\.load: memory://b/empty holds no checkpoint \({LATEST} is missing\)\.\nName the folder",
        "run/iter_0000010": rf"\nName the folder around it, {ADDRESS}; the checkpoint that",
        "part": r"^memory://b/part/iter_0000010 is not a complete .*\nName .* another iteration into memory://b/part/lat",
    }
    for name, message in messages.items():
        with pytest.raises(CheckpointError, match=message):
            starting_checkpoint.require_start(f"memory://b/{name}", None, tiny.tiny())


@pytest.fixture
def run_dir(folder, make, tmp_path):
    """A run whose latest checkpoint is stored, and an older one in its directory."""
    save(CheckpointFolder(tmp_path / "run" / "checkpoints"), 5)
    save(folder, 10)
    (tmp_path / "run" / "recipe.yml").write_text(to_yaml(make(f"checkpoint.save={ADDRESS}")))
    return tmp_path / "run"


def test_commands_take_the_stored_checkpoint_of_a_run_and_not_an_older_local_one(run_dir, got):
    assert shown_place(one_checkpoint(run_dir)) == f"{ADDRESS}/iter_0000010"
    assert got
    with (run_dir / "recipe.yml").open("a") as recipe:
        recipe.write("newer: 1\n")
    with pytest.raises(CheckpointError, match=rf"\nName the folder .* instead, such as {run_dir / 'checkpoints'}\.$"):
        one_checkpoint(run_dir)


def test_results_of_a_runs_own_stored_checkpoint_belong_to_the_run(run_dir, got):
    ObjectStore("memory://b/other").write("x", b"")
    own, others = (checkpoint_folder(f"memory://b/{name}") for name in ("run/iter_0000010", "other"))
    got.clear()
    found = [evaluate._run_of(run_dir / "recipe.yml", each) for each in (run_dir, own, others)]
    assert found == [str(run_dir), str(run_dir), None]
    assert got == []


def test_older_ones_are_found_by_one_listing(tmp_path, monkeypatch):
    folder, listed, objects = StoredFolder(tmp_path, 1, ADDRESS), [], ObjectStore.objects
    save(folder, 10, 20)
    monkeypatch.setattr(ObjectStore, "objects", lambda store: (listed.append(store.address), objects(store))[1])
    folder.publish(20)
    assert listed == [ADDRESS]


def test_a_store_that_takes_nothing_is_found_before_the_training(folder, monkeypatch):
    def refused(*_arguments):
        raise StoreError("refused")

    monkeypatch.setattr(ObjectStore, "write", refused)
    with pytest.raises(StoreError):
        folder.require_writable()
