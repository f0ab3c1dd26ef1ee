"""The limit of open files, which a rank raises for itself."""

import resource

import pytest

from pretrain.launch import open_files
from pretrain.launch.world import node_worlds


@pytest.fixture
def limited(monkeypatch):
    """Set the limits that the system has, and return those that were asked of it."""
    asked = []

    def limit(soft, hard):
        monkeypatch.setattr(open_files.resource, "getrlimit", lambda _kind: (soft, hard))
        monkeypatch.setattr(open_files.resource, "setrlimit", lambda _kind, limits: asked.append(limits))
        return asked

    return limit


def rank(number, ranks):
    return node_worlds([ranks], 0, "node", 1)[number]


def test_the_soft_limit_is_raised_to_the_hard_one(limited, capfd):
    asked = limited(1024, 65536)
    open_files.raise_open_files(rank(0, 64))
    assert asked == [(65536, 65536)]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("limit", [4096, resource.RLIM_INFINITY])
def test_nothing_is_asked_where_it_is_as_high_already(limited, limit):
    asked = limited(limit, limit)
    open_files.raise_open_files(rank(0, 64))
    assert asked == []


def test_one_rank_of_a_node_warns_where_the_hard_limit_is_too_low(limited, capfd):
    limited(1024, 1500)
    for number in range(2):
        open_files.raise_open_files(rank(number, 64))
    first, second = capfd.readouterr().err.splitlines()
    assert first == "warning: 1500 open files are allowed, and a rank of 64 needs about 1792."
    assert "--ulimit nofile" in second
