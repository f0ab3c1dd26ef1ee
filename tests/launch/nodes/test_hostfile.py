import pytest

from pretrain.errors import LaunchError
from pretrain.launch.nodes.nodes import Host, read_hostfile


@pytest.fixture
def read(tmp_path):
    """Reads a hostfile of this text; where it is, is left out of errors."""

    def written(text):
        path = tmp_path / "hosts"
        path.write_text(text)
        try:
            return read_hostfile(path)
        except LaunchError as error:
            raise LaunchError(str(error).replace(f"{tmp_path}/", "")) from error

    return written


def test_a_line_is_a_host_with_its_ranks(read):
    hosts = read("node1 slots=8\nnode2.cluster\tslots=4\n")
    assert hosts.members == (Host("node1", 8), Host("node2.cluster", 4))
    assert hosts.slots == 12
    assert str(hosts) == "node1 8, node2.cluster 4"
    assert hosts.file.is_absolute()


def test_empty_lines_comments_and_words_for_mpirun_are_passed_over(read):
    text = (
        "# two of four\n\n  node1 slots=2  \r\n\t\n#node3 slots=2\nme@node2 slots=2 max_slots=4\nnode4 slots=1 # old\n"
    )
    assert read(text).members == (Host("node1", 2), Host("me@node2", 2), Host("node4", 1))


def test_the_spelling_of_an_old_deepspeed_is_an_error_that_shows_todays(read):
    with pytest.raises(LaunchError) as raised:
        read("# for 0.6.0\n127.0.0.1 slot=16\n")
    assert str(raised.value) == (
        "hosts, line 2: '127.0.0.1 slot=16' is not HOST slots=RANKS.\nDid you mean: 127.0.0.1 slots=16"
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("node1 slots = 8", "Did you mean: node1 slots=8"),
        ("node1 Slots=8", "Did you mean: node1 slots=8"),
        ("node1:8", "Did you mean: node1 slots=8"),
        ("node1 8", "Did you mean: node1 slots=8"),
        ("node1 slots=4x", "Did you mean: node1 slots=4"),
        ("node1", "For eight ranks write: node1 slots=8"),
        ("node1 slots=", "For eight ranks write: node1 slots=8"),
        ("node[1-4] slots=8", "Write a line for each host"),
        ("node1,node2 slots=8", "Write a line for each host"),
        ("=", "Write a line for each host"),
    ],
)
def test_a_line_of_another_kind_is_an_error_with_what_was_probably_meant(read, line, hint):
    with pytest.raises(LaunchError) as raised:
        read(f"node0 slots=8\n{line}\n")
    told = str(raised.value).splitlines()
    assert told[0] == f"hosts, line 2: '{line}' is not HOST slots=RANKS."
    assert told[1].startswith(hint)


def test_a_host_has_one_line(read):
    with pytest.raises(LaunchError) as raised:
        read("node1 slots=4\nnode2 slots=4\nnode1 slots=2\n")
    assert str(raised.value) == (
        "hosts, line 3: node1 is listed already, in line 1.\nGive each host one line with all its ranks: node1 slots=6"
    )


def test_a_host_without_ranks_is_an_error(read):
    with pytest.raises(LaunchError, match=r"hosts, line 1: node1 has no slots, .*\nGive it slots, or put # before"):
        read("node1 slots=0")


@pytest.mark.parametrize("text", ["", "\n\n", "# node1 slots=8\n"])
def test_a_file_without_hosts_is_an_error(read, text):
    with pytest.raises(LaunchError, match=r"hosts names no host\.\nWrite a line for each, with its ranks"):
        read(text)


def test_what_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(LaunchError, match=r"--hostfile .*absent cannot be read: No such file"):
        read_hostfile(tmp_path / "absent")
    with pytest.raises(LaunchError, match="cannot be read: Is a directory"):
        read_hostfile(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match="cannot be read: it is not a text file"):
        read_hostfile(tmp_path / "binary")
