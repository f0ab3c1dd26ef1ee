"""Tensors are read from their place in a file; files that are not what they say are damaged."""

from __future__ import annotations

import argparse
import pickle
import signal
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.lazy_tensor import LazyTensor
from pretrain.tools.convert.stored import embedded_tensor, safetensors_tensors, torch_file_tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def tensors():
    return {
        "half": torch.randn(5, 3).half(),
        "wide": torch.randn(40, 7, dtype=torch.float64),
        "view": torch.arange(12.0).view(3, 4)[:, 1:],
        "turned": torch.arange(6.0).view(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "empty": torch.empty(0, 4),
    }


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_a_torch_file_gives_the_numbers_that_torch_reads(tmp_path, is_zip):
    saved = {"model": tensors(), "list": [torch.ones(2)], "args": argparse.Namespace(x=1), "step": torch.tensor(7)}
    torch.save(saved, tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    found = torch_file_tensors(tmp_path / "w.pt")
    assert (found["args"].x, found["step"].item(), found["list"][0].whole().tolist()) == (1, 7, [1.0, 1.0])
    for name, tensor in saved["model"].items():
        assert torch.equal(found["model"][name].whole(), tensor), name
        assert found["model"][name].dtype == tensor.dtype
        assert torch.equal(found["model"][name].rows(1, 2), tensor[1:2])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_safetensors_file_gives_the_numbers_that_were_written(tmp_path, dtype):
    weights = {"a": torch.randn(6, 5).to(dtype), "b": torch.randn(3).to(dtype)}
    safetensors.torch.save_file(weights, tmp_path / "w.safetensors")
    found = safetensors_tensors(tmp_path / "w.safetensors")
    assert {name: torch.equal(found[name].whole(), tensor) for name, tensor in weights.items()} == {
        "a": True,
        "b": True,
    }
    assert torch.equal(found["a"].rows(2, 4), weights["a"][2:4])


def test_a_tensor_inside_a_file_is_read_from_its_part(tmp_path):
    weight = torch.randn(4, 3)
    with (tmp_path / "w").open("wb") as file:
        file.write(b"before it")
        torch.save(weight, file)
        length = file.tell() - 9
        file.write(b"behind it")
    lazy = embedded_tensor(tmp_path / "w", 9, length, (4, 3), torch.float32)
    assert torch.equal(lazy.rows(1, 3), weight[1:3])
    for shape, dtype in [((3, 4), torch.float32), ((4, 3), torch.float16)]:
        with pytest.raises(DamageError, match="is not the one that its index names"):
            embedded_tensor(tmp_path / "w", 9, length, shape, dtype).whole()


def test_a_file_that_ends_early_is_damaged(tmp_path):
    weights = {"a": torch.randn(100, 10)}
    safetensors.torch.save_file(weights, tmp_path / "w.safetensors")
    lazy = safetensors_tensors(tmp_path / "w.safetensors")["a"]
    content = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(content[:-400])  # after its header was read
    with pytest.raises(DamageError, match="is cut off"):
        lazy.whole()
    with pytest.raises(DamageError, match="is damaged or not a safetensors file"):
        safetensors_tensors(tmp_path / "w.safetensors")


def test_a_tensor_that_claims_more_than_its_place_is_damaged(tmp_path):
    """A hostile pickle may state any shape for a storage of four bytes."""
    torch.save({"w": torch.ones(1), "secret": torch.ones(1000)}, tmp_path / "w.pt")
    content = {}
    with zipfile.ZipFile(tmp_path / "w.pt") as archive:
        content = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    name = next(name for name in content if name.endswith("data.pkl"))
    larger = content[name].replace(b"K\x01\x85", b"M\xf0\x00\x85", 1).replace(b"K\x01tq", b"M\xf0\x00tq", 1)
    assert larger != content[name]
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as archive:
        for each, data in (content | {name: larger}).items():
            archive.writestr(each, data)
    with pytest.raises(DamageError, match="is damaged"):
        torch_file_tensors(tmp_path / "w.pt")


def test_nothing_in_a_part_of_a_file_is_executed(tmp_path):
    class Executed:
        def __reduce__(self):
            return (print, ("executed",))

    torch.save(Executed(), tmp_path / "w")
    lazy = embedded_tensor(tmp_path / "w", 0, (tmp_path / "w").stat().st_size, (1,), torch.float32)
    with pytest.raises(CheckpointError, match=r"holds [\w.]*print, which could run code"):
        lazy.whole()


class ByName:
    """Pickled as Python 3.11.0 to 3.11.3 pickles members of enumerations."""

    def __init__(self, kind, name):
        self.member = (kind, name)

    def __reduce__(self):
        return (getattr, self.member)


def test_a_member_of_an_enumeration_that_is_written_by_name_is_a_record(tmp_path):
    torch.save({"args": argparse.Namespace(signal=ByName(signal.Signals, "SIGTERM"))}, tmp_path / "w.pt")
    assert torch_file_tensors(tmp_path / "w.pt")["args"].signal.arguments == ("SIGTERM",)


@pytest.mark.parametrize("kind", [argparse.Namespace, torch.Tensor, "text"])
def test_no_attribute_of_anything_else_is_read(tmp_path, kind):
    torch.save(ByName(kind, "__init__"), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"holds builtins\.getattr, which could run code"):
        torch_file_tensors(tmp_path / "w.pt")


@given(data=st.data())
def test_any_damage_is_an_error_of_ours_or_none(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damaged") / "w.pt"
    torch.save({"model": {"a": torch.arange(20.0).view(4, 5)}}, path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), place]))])
    try:
        found = torch_file_tensors(path)
        for lazy in found["model"].values() if isinstance(found, dict) and isinstance(found.get("model"), dict) else ():
            if isinstance(lazy, LazyTensor):
                lazy.whole()
    except CheckpointError:
        pass


def test_a_value_that_contains_itself_is_damaged(tmp_path):
    loop: dict = {}
    loop["loop"] = loop
    torch.save({"model": loop}, tmp_path / "w.pt", pickle_module=pickle)
    with pytest.raises(DamageError, match="contains itself"):
        torch_file_tensors(tmp_path / "w.pt")


def test_a_value_in_many_places_is_looked_at_once(tmp_path):
    shared = {"w": torch.ones(3)}
    for _ in range(40):
        shared = {"a": shared, "b": shared}
    torch.save(shared, tmp_path / "w.pt")
    found = torch_file_tensors(tmp_path / "w.pt")
    for _ in range(40):
        assert found["a"] is found["b"]
        found = found["a"]
    assert found["w"].whole().tolist() == [1, 1, 1]


def test_values_that_are_nested_too_deep_are_damaged(tmp_path):
    nested = [torch.ones(1)]
    for _ in range(50):
        nested = [nested]
    torch.save(nested, tmp_path / "w.pt")
    with pytest.raises(DamageError, match="nested more than 50 levels deep"):
        torch_file_tensors(tmp_path / "w.pt")


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_an_expanded_tensor_is_damaged(tmp_path, is_zip):
    torch.save({"w": torch.ones(1).expand(10**9, 8)}, tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    with pytest.raises(DamageError, match=r"shape \[1000000000, 8\] share their places"):
        torch_file_tensors(tmp_path / "w.pt")


def test_a_file_that_is_gone_is_named(tmp_path):
    """While a target is written, an error of the system would otherwise pass for one of the target."""
    torch.save(torch.ones(4), tmp_path / "w.pt")
    length = (tmp_path / "w.pt").stat().st_size
    tensors = [
        torch_file_tensors(tmp_path / "w.pt"),
        embedded_tensor(tmp_path / "w.pt", 0, length, (4,), torch.float32),
    ]
    (tmp_path / "w.pt").unlink()
    for tensor in tensors:
        with pytest.raises(CheckpointError, match=r"w\.pt cannot be read: No such file.*\nCopy it again"):
            tensor.whole()


def test_a_record_is_verified_with_its_file_opened_once(tmp_path, monkeypatch):
    torch.save(torch.ones(2**20), tmp_path / "w.pt")  # four blocks of a MiB
    tensor, opened = torch_file_tensors(tmp_path / "w.pt"), []
    open_ = Path.open

    def counted(path, *how, **options):
        opened.append(path)
        return open_(path, *how, **options)

    monkeypatch.setattr(Path, "open", counted)
    assert tensor.rows(0, 1).tolist() == [1]
    assert opened == [tmp_path / "w.pt"] * 2  # for the record, and for the row
