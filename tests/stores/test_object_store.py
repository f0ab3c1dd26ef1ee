"""Single objects: read, written, listed; what is repeated, and what is an error of two lines."""

import errno

import pytest

from pretrain.errors import CheckpointError, DataError, StoreError
from pretrain.stores import object_store
from pretrain.stores.address import STORES
from pretrain.stores.object_store import ObjectStore

STORE = ObjectStore("memory://b/run")


class NoCredentialsError(Exception):
    """As botocore's."""


def failing(monkeypatch, memory, method, *errors):
    """Let a method of the file system raise each error once, and then work; return the list of calls."""
    left, calls, works = list(errors), [], getattr(memory, method)

    def call(*arguments, **options):
        calls.append(arguments)
        if left:
            raise left.pop(0)
        return works(*arguments, **options)

    monkeypatch.setattr(type(memory), method, lambda _self, *arguments, **options: call(*arguments, **options))
    return calls


def test_an_object_is_read_as_it_was_written_and_one_that_is_missing_is_none(memory):
    STORE.write("latest.txt", b"10\n")
    assert STORE.read("latest.txt") == b"10\n"
    assert STORE.read("other.txt") is None
    assert memory.cat("/b/run/latest.txt") == b"10\n"


def test_objects_are_listed_with_names_and_sizes_and_neighbours_are_not(memory):
    for name in ("run/a", "run/iter_1/x", "run2/a", "ru"):
        memory.pipe(f"/b/{name}", b"123")
    assert [(each.name, each.size) for each in STORE.objects()] == [("a", 3), ("iter_1/x", 3)]
    assert [each.name for each in STORE.objects("iter_1")] == ["iter_1/x"]
    assert [each.name for each in STORE.named(["a", "b", "iter_1"])] == ["a"]  # not a folder


def test_another_content_of_the_same_size_has_another_tag(memory):
    STORE.write("a", b"1")
    before = STORE.objects()
    STORE.write("a", b"2")
    assert STORE.objects() != before


def test_the_probe_leaves_nothing(memory):
    STORE.require_writable()
    assert STORE.objects() == []


def test_what_is_gone_already_is_removed_too(memory):
    STORE.write("a", b"1")
    STORE.remove(["a", "never"])
    assert STORE.objects() == []


def test_the_empty_object_that_consoles_make_for_a_folder_is_no_object(memory, monkeypatch):
    STORE.write("a", b"1")
    find = memory.find

    def found(_self, *arguments, **options):
        return find(*arguments, **options) | {"/b/run/sub/": {"size": 0}}

    monkeypatch.setattr(type(memory), "find", found)
    assert [each.name for each in STORE.objects()] == ["a"]


def test_many_are_removed_in_one_call_and_an_address_is_no_pattern(memory, monkeypatch):
    starred = ObjectStore("memory://b/ru*")
    for store in (STORE, starred):
        store.write("a", b"1")
        store.write("b", b"2")
    calls = failing(monkeypatch, memory, "rm")
    starred.remove(["a", "b"])
    assert [each.name for each in STORE.objects()] == ["a", "b"]
    assert calls == []
    STORE.remove(["a", "b"])
    assert calls == [(["b/run/a", "b/run/b"],)]
    assert STORE.objects() == starred.objects() == []


def test_a_lost_connection_is_tried_again_and_said_once(monkeypatch, memory, capsys):
    calls = failing(monkeypatch, memory, "pipe_file", ConnectionResetError("lost"), TimeoutError("slow"))
    STORE.write("a", b"1")
    assert len(calls) == 3
    assert STORE.read("a") == b"1"
    assert capsys.readouterr().err == "memory://b/run cannot be written: lost. It is tried again for 0 s.\n"


def test_a_connection_that_stays_lost_is_an_error_for_checkpoints_and_for_data(monkeypatch, memory):
    calls = failing(monkeypatch, memory, "cat_file", *[ConnectionResetError("lost")] * 9)
    with pytest.raises(StoreError, match=r"^memory://b/run cannot be read: lost\.\nLook at the network") as error:
        STORE.read("a")
    assert len(calls) == 1 + len(object_store.WAITS)
    assert isinstance(error.value, CheckpointError)
    assert isinstance(error.value, DataError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError("Access Denied"), r"cannot be written: Access Denied\."),
        (NoCredentialsError("Unable to locate credentials"), r"cannot be written: Unable to locate credentials\."),
        (
            FileNotFoundError("The bucket does not exist"),
            r"does not exist\.\nMake the bucket, or correct the address\.$",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            r"No space left on device\.\nFree disk space.* PRETRAIN_CACHE",
        ),
    ],
)
def test_what_cannot_succeed_is_not_tried_again(monkeypatch, memory, error, message):
    calls = failing(monkeypatch, memory, "pipe_file", error)
    with pytest.raises(StoreError, match=message) as raised:
        STORE.write("a", b"1")
    assert len(calls) == 1
    assert str(raised.value).count("\n") == 1


@pytest.mark.parametrize(("scheme", "login"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_APPLICATION_CREDENTIALS")])
def test_a_refused_login_says_how_to_log_in(monkeypatch, memory, scheme, login):
    store = ObjectStore(f"{scheme}://b/run")
    monkeypatch.setattr(ObjectStore, "_files", lambda _self: memory)
    failing(monkeypatch, memory, "pipe_file", PermissionError("Forbidden"))
    with pytest.raises(StoreError, match=rf"^{scheme}://b/run cannot be written: Forbidden\.\nSet {login}"):
        store.write("a", b"1")


@pytest.mark.parametrize("scheme", [scheme for scheme in STORES if scheme != "memory"])
def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch, memory, scheme):
    store = ObjectStore(f"{scheme}://b/run")

    def missing(_self):
        raise ImportError

    monkeypatch.setattr(ObjectStore, "_files", missing)
    with pytest.raises(StoreError, match=rf"{STORES[scheme]} is not installed\.\nInstall it: pip install 'pretrain"):
        store.read("a")


def test_a_bucket_that_is_not_there_is_no_empty_one(memory):
    with pytest.raises(StoreError, match=r"^memory://c/run cannot be read: there is no such bucket\.\nMake the bucket"):
        ObjectStore("memory://c/run").objects()
