"""A block of a tensor in pieces reads the pieces that it needs; a piece that its file does not have is damage."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo

from pretrain.checkpoint.sharded_format import read_index
from pretrain.errors import DamageError
from pretrain.tools.convert.file_writers import Entry, ShardedFile, write_index
from pretrain.tools.convert.formats.sharded import ShardedTensor, TensorPiece, sharded_tensors
from pretrain.tools.convert.lazy_tensor import LazyTensor, in_memory


def written(folder, weight):
    """Write a checkpoint of one stacked weight; return its index."""
    files = [
        ShardedFile(f"__0_{place}.distcp", (Entry("w", place, 2, in_memory(part)),))
        for place, part in enumerate(weight)
    ]
    results = {file.name: file.write(folder / file.name, lambda count: None) for file in files}
    write_index(folder, [entry for file in files for entry in file.entries], results)
    return read_index(folder)


def test_any_block_of_pieces_in_any_order_has_its_numbers():
    weight = torch.arange(7.0 * 4 * 6).view(7, 4, 6)
    bounds = [(0, 3, 0, 4), (3, 4, 2, 4), (3, 4, 0, 2), (6, 7, 0, 4), (4, 6, 0, 4)]
    pieces = tuple(TensorPiece((a, c, 0), in_memory(weight[a:b, c:d])) for a, b, c, d in bounds)
    tensor = ShardedTensor((7, 4, 6), torch.float32, pieces)
    for begin in range(7):
        for end in range(begin + 1, 8):
            assert torch.equal(tensor.whole().rows(begin, end), weight[begin:end])
        assert torch.equal(tensor.of_first(begin).rows(1, 3), weight[begin, 1:3])


def test_a_layer_looks_at_no_piece_of_another():
    looked_at = []

    class Counted(LazyTensor):
        def __getattribute__(self, name):
            looked_at.append(name)
            return super().__getattribute__(name)

    part = Counted((1, 2), torch.float32, lambda begin, end: torch.zeros(end - begin, 2))
    tensor = ShardedTensor((3000, 2), torch.float32, tuple(TensorPiece((number, 0), part) for number in range(3000)))
    tensor.of_first(0).whole()
    looked_at.clear()
    tensor.of_first(1700).whole()
    assert len(looked_at) < 10


def test_an_empty_tensor_is_left_out(tmp_path):
    index = written(tmp_path, torch.ones(2, 4, 3))
    index.state_dict_metadata["w"].size = (2_000_000_000, 0)
    index.state_dict_metadata["w"].chunks = []
    assert sharded_tensors(tmp_path, index) == {}


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        (("__0_0.distcp", 0, 40), "a piece of w is larger than its place in its file"),
        (("__0_0.distcp", 0, 10**15), "is cut off: it ends before a piece of w"),
        (("__0_0.distcp", -5, 2000), "is cut off: it ends before a piece of w"),
        (("../x/__0_0.distcp", 0, 10), "lacks a piece of w: ../x/__0_0.distcp is missing"),
    ],
)
def test_a_piece_that_is_not_in_its_file_is_damage(tmp_path, place, problem):
    (tmp_path / "x").mkdir()
    index = written(tmp_path / "x", torch.ones(2, 4, 3))
    index.storage_data[next(iter(index.storage_data))] = _StorageInfo(*place)
    with pytest.raises(DamageError, match=problem):
        sharded_tensors(tmp_path / "x", index)
