"""Files that are written block by block are those that torch and safetensors would write at once."""

from __future__ import annotations

import zipfile
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import safetensors.torch
import torch
from torch.distributed import checkpoint as dcp

from pretrain.checkpoint.sharded_format import read_index
from pretrain.errors import CheckpointError
from pretrain.tools.convert import file_writers, lazy_tensor
from pretrain.tools.convert.file_writers import Entry, SafetensorsFile, ShardedFile, TorchFile, write_index
from pretrain.tools.convert.lazy_tensor import LazyTensor, in_memory, joined

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def small_blocks(monkeypatch):
    """Write blocks of 64 bytes, so that small tensors have several."""
    monkeypatch.setattr(LazyTensor.blocks, "__defaults__", (64,))
    monkeypatch.setattr(file_writers, "_PIECE", 64)


def written(file, path):
    """Write a file; return the path, after checking that every byte of its tensors was reported."""
    counts = []
    file.write(path, counts.append)
    assert sum(counts) == file.nbytes
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_reads_what_was_written(tmp_path, small_blocks, dtype):
    a, b = torch.randn(30, 7).to(dtype), torch.randn(5).to(dtype)
    content = {"model": OrderedDict(a=in_memory(a), n=3), "list": [in_memory(b), joined([in_memory(b)] * 2, 0)]}
    path = written(TorchFile("w.pt", content), tmp_path / "w.pt")
    found = torch.load(path, weights_only=True)
    assert list(found["model"]) == ["a", "n"]
    assert torch.equal(found["model"]["a"], a)
    assert torch.equal(found["list"][0], b)
    assert torch.equal(found["list"][1], torch.cat([b, b]))


def test_the_checksums_in_a_torch_file_are_right(tmp_path, small_blocks):
    path = written(TorchFile("w.pt", {"a": in_memory(torch.randn(100)), "b": in_memory(torch.ones(3))}), tmp_path / "w")
    assert zipfile.ZipFile(path).testzip() is None


def test_torch_files_are_written_side_by_side(tmp_path):
    weights = [torch.randn(100, 10) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(
                lambda number: written(TorchFile("", [in_memory(weights[number])]), tmp_path / str(number)), range(8)
            )
        )
    assert all(torch.equal(torch.load(tmp_path / str(number))[0], weights[number]) for number in range(8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_reads_what_was_written(tmp_path, small_blocks, dtype):
    weights = {"a": torch.randn(30, 7).to(dtype), "b.weight": torch.randn(5).to(dtype)}
    file = SafetensorsFile("w", {name: in_memory(weight) for name, weight in weights.items()})
    found = safetensors.torch.load_file(written(file, tmp_path / "w.safetensors"))
    assert {name: torch.equal(found[name], weight) for name, weight in weights.items()} == dict.fromkeys(weights, True)


def test_a_dtype_that_no_model_has_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"w has dtype torch.int64"):
        SafetensorsFile("w", {"w": in_memory(torch.ones(3, dtype=torch.int64))}).write(
            tmp_path / "w", lambda count: None
        )


def test_torch_distributed_reads_what_was_written(tmp_path, small_blocks):
    layers, alone = [torch.randn(9, 7) for _ in range(2)], torch.randn(40)
    files = [
        ShardedFile(f"__0_{place}.distcp", (Entry("stacked", place, 2, in_memory(layer)),), (f"empty/shard_{place}_2",))
        for place, layer in enumerate(layers)
    ]
    files.append(ShardedFile("__0_2.distcp", (Entry("alone", None, 0, in_memory(alone)),)))
    results = {file.name: file.write(tmp_path / file.name, lambda count: None) for file in files}
    write_index(tmp_path, [entry for file in files for entry in file.entries], results)
    assert read_index(tmp_path).state_dict_metadata.keys() == {"stacked", "alone", "empty/shard_0_2", "empty/shard_1_2"}
    found = {"stacked": torch.empty(2, 9, 7), "alone": torch.empty(40)}
    dcp.load(found, storage_reader=dcp.FileSystemReader(tmp_path), no_dist=True)
    assert torch.equal(found["stacked"], torch.stack(layers))
    assert torch.equal(found["alone"], alone)


def test_a_block_is_all_that_is_in_memory(tmp_path):
    """Of a tensor of 16 blocks, no more rows than one block has are read at a time."""
    read = []

    def rows(begin, end):
        read.append(end - begin)
        return torch.zeros(end - begin, 1024)

    tensor = LazyTensor((16 * lazy_tensor.BLOCK // 4096, 1024), torch.float32, rows)
    SafetensorsFile("w", {"w": tensor}).write(tmp_path / "w", lambda count: None)
    assert max(read) == lazy_tensor.BLOCK // 4096
