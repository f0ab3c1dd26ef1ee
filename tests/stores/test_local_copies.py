"""Copies on a node: complete or absent, verified, continued, and never of two versions."""

import errno
import os
from pathlib import Path

import pytest

from pretrain.errors import DamageError, StoreError
from pretrain.stores.local_copies import node_copy, remove_copy, shown_place
from pretrain.stores.object_store import ObjectStore, StoredObject
from pretrain.stores.stored_inputs import local_input, local_prefix

STORE = ObjectStore("memory://b/run")


@pytest.fixture
def got(monkeypatch):
    """Return the list of names that are copied from now on."""
    names, get = [], ObjectStore.get

    def counted(store, targets):
        names.extend(targets)
        get(store, targets)

    monkeypatch.setattr(ObjectStore, "get", counted)
    return names


def contents(folder):
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def test_a_copy_has_the_objects_and_is_made_once(memory, got):
    STORE.write("a", b"1")
    STORE.write("deep/b", b"22")
    first = node_copy(STORE, STORE.objects)
    assert contents(first) == {"a": b"1", "deep/b": b"22"}
    assert first.name == "run"
    assert node_copy(STORE, STORE.objects) == first
    assert sorted(got) == ["a", "deep/b"]


def test_changed_objects_are_another_copy(memory):
    STORE.write("a", b"1")
    before = node_copy(STORE, STORE.objects)
    STORE.write("a", b"2")
    after = node_copy(STORE, STORE.objects)
    assert (contents(before), contents(after)) == ({"a": b"1"}, {"a": b"2"})


def test_objects_that_change_meanwhile_are_not_mixed(memory, monkeypatch):
    STORE.write("a", b"1")
    get = ObjectStore.get
    monkeypatch.setattr(ObjectStore, "get", lambda store, targets: (get(store, targets), store.write("a", b"2")))
    with pytest.raises(StoreError, match=r"^memory://b/run has changed while it was copied\.\nStart again"):
        node_copy(STORE, STORE.objects)


def test_an_interrupted_copy_goes_on_and_does_not_take_half_a_file(memory, monkeypatch, got):
    for number in range(12):
        STORE.write(f"{number:02}", b"whole")
    get = ObjectStore.get

    def interrupted(store, targets):
        get(store, targets)
        if "08" in targets:
            next(iter(targets.values())).write_bytes(b"ha")
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(ObjectStore, "get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            node_copy(STORE, STORE.objects)
    got.clear()
    assert set(contents(node_copy(STORE, STORE.objects)).values()) == {b"whole"}
    assert got == ["08", "09", "10", "11"]


def test_a_copy_that_is_damaged_is_not_kept(memory):
    STORE.write("a", b"1")

    def refuse(folder):
        raise DamageError(f"{folder / 'a'} is damaged")

    with pytest.raises(DamageError):
        node_copy(STORE, STORE.objects, refuse)
    assert contents(node_copy(STORE, STORE.objects)) == {"a": b"1"}  # copied again, and accepted


def test_a_removed_copy_is_made_again(memory, got):
    STORE.write("a", b"1")
    remove_copy(node_copy(STORE, STORE.objects))
    node_copy(STORE, STORE.objects)
    assert got == ["a", "a"]


def test_a_user_sees_the_address_of_a_copy(memory, tmp_path):
    STORE.write("iter_0000010/a", b"1")
    copy = node_copy(STORE, STORE.objects)
    assert shown_place(copy) == "memory://b/run"
    assert shown_place(copy / "iter_0000010") == "memory://b/run/iter_0000010"
    assert shown_place(tmp_path) == str(tmp_path)


def test_a_disk_that_takes_no_copy_is_an_error(memory, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PRETRAIN_CACHE", str(tmp_path / "file"))
    STORE.write("a", b"1")
    with pytest.raises(
        StoreError, match=r"cannot be copied to .*: Not a directory\.\nSet .* folder that can be written"
    ):
        node_copy(STORE, STORE.objects)


def test_a_full_disk_is_told_how_much_is_needed(memory, monkeypatch):
    STORE.write("a", b"1")

    def full(_store, _targets):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ObjectStore, "get", full)
    with pytest.raises(StoreError, match=r"No space left on device\.\nSet .* with 0\.0 GB of free space\."):
        node_copy(STORE, STORE.objects)


@pytest.mark.parametrize("name", ["/tmp/x", "../../x", "a/../../../x", "a//b", "./a", ".."])
def test_an_object_whose_name_leads_out_of_the_copy_is_refused(memory, tmp_path, name):
    with pytest.raises(StoreError, match=r"^memory://b/run has an object '.*', which is no name of a file"):
        node_copy(STORE, lambda: [StoredObject(name, 1, "")])
    assert list(tmp_path.iterdir()) == []


def test_an_input_is_a_path_an_object_a_folder_or_a_pattern(memory):
    for name in ("a.jsonl", "b.jsonl", "c.txt", "deep/d.jsonl"):
        memory.pipe(f"/b/corpus/{name}", name.encode())
    assert local_input("data/x.jsonl") == Path("data/x.jsonl")
    assert local_input("memory://b/corpus/a.jsonl").read_bytes() == b"a.jsonl"
    assert sorted(contents(local_input("memory://b/corpus"))) == ["a.jsonl", "b.jsonl", "c.txt", "deep/d.jsonl"]
    assert sorted(contents(local_input("memory://b/corpus/*.jsonl"))) == ["a.jsonl", "b.jsonl"]
    with pytest.raises(StoreError, match=r"^memory://b/corpus/\*\.xz holds no object"):
        local_input("memory://b/corpus/*.xz")


@pytest.fixture
def tokens(memory, monkeypatch):
    """Put token files at memory://b/data/x, for a process that no other has started; return the address."""
    before = dict(os.environ)
    for suffix in ("bin", "idx", "tokenizer.json"):
        memory.pipe(f"/b/data/x.{suffix}", suffix.encode())
    memory.pipe("/b/data/y.bin", b"of another")
    yield "memory://b/data/x"
    for name in os.environ.keys() - before.keys():
        del os.environ[name]


def test_token_files_are_copied_with_their_stamp_and_no_others(tokens):
    prefix = local_prefix(tokens)
    assert sorted(contents(Path(prefix).parent)) == ["x.bin", "x.idx", "x.tokenizer.json"]
    assert local_prefix("data/x") == "data/x"


def test_ranks_read_what_their_launcher_has_copied_also_when_it_was_replaced(tokens, memory):
    prefix = local_prefix(tokens)
    memory.pipe("/b/data/x.bin", b"new")
    assert local_prefix(tokens) == prefix
    remove_copy(Path(prefix).parent)
    assert Path(f"{local_prefix(tokens)}.bin").read_bytes() == b"new"


def test_a_missing_half_of_token_files_is_named(tokens, memory):
    memory.rm("/b/data/x.idx")
    with pytest.raises(StoreError, match=r"^token file memory://b/data/x\.idx is missing\.\nBuild it, and copy"):
        local_prefix(tokens)
