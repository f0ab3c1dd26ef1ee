"""An error of the first rank reaches all, whatever it is: the others would wait for its answer."""

from __future__ import annotations

import pickle

import pytest
import torch.distributed as dist

from pretrain.collectives import on_rank0
from pretrain.errors import CheckpointError


@pytest.fixture
def as_rank(monkeypatch):
    """Call `on_rank0` as one rank after the other; what rank 0 sends is kept."""
    sent = []

    def broadcast(outcome):
        if dist.get_rank() == 0:
            sent.append(pickle.dumps(outcome))
        else:
            outcome[:] = pickle.loads(sent[-1])

    def call(rank, ask):
        monkeypatch.setattr(dist, "get_rank", lambda: rank)
        return on_rank0(ask)

    monkeypatch.setattr(dist, "broadcast_object_list", broadcast)
    return call


def not_asked():
    raise AssertionError


def test_the_answer_of_the_first_rank_is_that_of_all(as_rank):
    assert [as_rank(0, lambda: 3), as_rank(1, not_asked)] == [3, 3]


@pytest.mark.parametrize(
    ("error", "elsewhere"),
    [
        (CheckpointError("two\nlines"), (CheckpointError, "two\nlines")),
        (KeyError("name"), (RuntimeError, "rank 0 failed with KeyError: 'name'")),
        (OSError(5, "Input/output error"), (RuntimeError, "OSError: .Errno 5. Input/output error")),
    ],
)
def test_an_error_of_the_first_rank_is_one_of_all(as_rank, error, elsewhere):
    def ask():
        raise error

    with pytest.raises(type(error)) as raised:
        as_rank(0, ask)
    assert raised.value is error
    with pytest.raises(elsewhere[0], match=elsewhere[1]):
        as_rank(1, not_asked)
