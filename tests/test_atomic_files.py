"""Files appear complete or not at all."""

import pytest

from pretrain.atomic_files import replacing
from pretrain.errors import DataError, RunError


@pytest.mark.parametrize("durable", [True, False])
def test_the_file_appears_when_the_block_ends(tmp_path, durable):
    path = tmp_path / "new" / "a.json"
    with replacing(path, durable=durable) as stream:
        stream.write(b"{}")
        assert not path.exists()
    assert path.read_bytes() == b"{}"
    assert list(path.parent.iterdir()) == [path]


def test_an_exception_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as stream:
        stream.write(b"new" * (1 // 0))
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("options", "expected"), [({}, DataError), ({"error": RunError}, RunError)])
def test_a_failure_is_a_user_error_of_the_given_type(tmp_path, options, expected):
    (tmp_path / "file").touch()
    with pytest.raises(expected, match=r"file/a cannot be written: "), replacing(tmp_path / "file" / "a", **options):
        pass


def test_without_a_type_the_failure_is_the_system_s_own(tmp_path):
    with pytest.raises(OSError, match="No space") as caught, replacing(tmp_path / "a", error=None):
        raise OSError(28, "No space left on device")
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []
