"""Environment of a rank: variables that the user has set stay; no folder is used that another user can write to."""

from __future__ import annotations

import pytest

from pretrain_cuda import environment


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_memory_grows_in_segments_and_kernels_are_kept_on_the_node(temporary):
    found = environment.variables({})
    folder = environment.own_folder(temporary)
    assert found == {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "TRITON_CACHE_DIR": str(folder)}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert environment.variables({}) == found


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_the_user_has_set_stays_under_either_name(name):
    assert set(environment.variables({name: "max_split_size_mb:512"})) == {"TRITON_CACHE_DIR"}


@pytest.mark.parametrize("name", ["TRITON_CACHE_DIR", "TRITON_HOME"])
def test_a_folder_that_the_user_has_set_stays_under_either_name(name):
    assert "TRITON_CACHE_DIR" not in environment.variables({name: "elsewhere"})


def test_a_folder_that_others_can_write_to_is_not_taken(temporary):
    environment.own_folder(temporary).chmod(0o777)
    assert environment.own_folder(temporary) is None
    assert "TRITON_CACHE_DIR" not in environment.variables({})


def test_a_link_or_a_file_in_its_place_is_not_taken(temporary):
    folder = environment.own_folder(temporary)
    folder.rmdir()
    (temporary / "elsewhere").mkdir()
    folder.symlink_to(temporary / "elsewhere")
    assert environment.own_folder(temporary) is None
    folder.unlink()
    folder.touch()
    assert environment.own_folder(temporary) is None


def test_a_folder_of_another_user_is_not_taken(temporary, monkeypatch):
    environment.own_folder(temporary)
    mine = environment.os.getuid()
    (temporary / f"pretrain-triton-{mine}").rename(temporary / f"pretrain-triton-{mine + 1}")
    monkeypatch.setattr("os.getuid", lambda: mine + 1)
    assert environment.own_folder(temporary) is None
