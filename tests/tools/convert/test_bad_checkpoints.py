"""Files that would run code, incomplete and damaged ones: two or three lines, nothing executed, nothing written."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import sys
import types
import zipfile
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.serialization import get_safe_globals

from pretrain.checkpoint import torch_file
from pretrain.errors import CheckpointError, DamageError
from pretrain.tools.convert.registry import summary_of
from tools.convert import written


class Runs:
    """An object whose unpickling calls a function."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.fixture
def mark(tmp_path):
    return tmp_path / "executed"


def hostile(mark):
    """Objects that write a file when they are unpickled by pickle."""
    return {
        "a function": Runs(os.mkdir, str(mark)),
        "a function, by eval": Runs(eval, f"__import__('os').mkdir({str(mark)!r})"),
        "within a tensor's place": {"weight": Runs(os.mkdir, str(mark))},
        "through torch": Runs(torch.hub.load, str(mark), "nothing"),
        "through torch.load itself": Runs(torch.load, str(mark)),
        "through an attribute": Runs(getattr, "text", "upper"),
        "a process group, which torch.distributed allows": Runs(DeviceMesh, "cpu", (0,)),
    }


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("what", hostile(""))
def test_nothing_in_a_file_is_executed(tmp_path, mark, what, is_zip):
    (tmp_path / "iter_0000001" / "mp_rank_00").mkdir(parents=True)
    file = tmp_path / "iter_0000001" / "mp_rank_00" / "model_optim_rng.pt"
    torch.save({"model": hostile(mark)[what]}, file, _use_new_zipfile_serialization=is_zip)
    with pytest.raises(CheckpointError, match=r"which could run code\. Nothing was executed") as raised:
        summary_of(tmp_path / "iter_0000001")
    assert len(str(raised.value).splitlines()) == 2
    assert not mark.exists()


def test_a_class_of_megatron_is_read_without_being_imported(tmp_path, monkeypatch):
    """The args of newer versions hold enumerations."""
    module = types.ModuleType("megatron.training.kinds")
    module.Kind = type("Kind", (), {"__module__": module.__name__, "__reduce__": lambda _: (module.Kind, (1,))})
    module.Kind.__init__ = lambda self, *_: None
    monkeypatch.setitem(sys.modules, module.__name__, module)
    torch.save({"args": module.Kind(), "again": module.Kind()}, tmp_path / "file.pt")
    monkeypatch.delitem(sys.modules, module.__name__)
    read = torch_file.read(tmp_path / "file.pt")
    assert read["args"].arguments == (1,)
    assert module.__name__ not in sys.modules


def test_an_array_of_pointers_is_a_record(tmp_path):
    """numpy takes the address of an object from an array's bytes."""
    torch.save({"args": Runs(np.ndarray, (1,), "O", b"AAAAAAAA")}, tmp_path / "file.pt")
    assert type(torch_file.read(tmp_path / "file.pt")["args"]).__name__ == "ndarray"
    assert not isinstance(torch_file.read(tmp_path / "file.pt")["args"], np.ndarray)


def test_what_other_libraries_have_allowed_is_as_before(tmp_path):
    torch.save({}, tmp_path / "file.pt")
    before = get_safe_globals()
    torch_file.read(tmp_path / "file.pt")
    assert set(get_safe_globals()) == set(before) != set()


def test_a_packed_archive_with_a_comment_is_not_unpacked(tmp_path):
    """zipfile takes a comment of these bytes for the end of another archive, and torch does not."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("archive/data.pkl", b"N.")
        bomb.comment = b"PK\x05\x06"
    with pytest.raises(DamageError):
        torch_file.read(tmp_path / "bomb.pt")


def test_a_packed_archive_is_not_unpacked(tmp_path):
    torch.save({"model": torch.zeros(1000)}, tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "bomb.pt", "w") as bomb:
        for entry in plain.infolist():
            bomb.writestr(entry.filename, plain.read(entry), compress_type=zipfile.ZIP_DEFLATED)
    with pytest.raises(DamageError, match="compressed archive"):
        torch_file.read(tmp_path / "bomb.pt")


@given(cut=st.floats(0, 1), flip=st.floats(0, 1), is_zip=st.booleans())
def test_a_damaged_file_is_refused_or_read(tmp_path_factory, cut, flip, is_zip):
    """Flipped bytes in the middle of a tensor cannot be seen; nothing else gets through, and never a traceback."""
    file = tmp_path_factory.mktemp("damaged") / "file.pt"
    torch.save({"model": {"weight": torch.rand(8)}}, file, _use_new_zipfile_serialization=is_zip)
    content = bytearray(file.read_bytes())
    content[int(flip * (len(content) - 1))] ^= 0xFF
    file.write_bytes(content[: 1 + int(cut * len(content))])
    refused = []
    try:
        torch_file.read(file)
    except CheckpointError as error:
        refused = str(error).splitlines()
    assert len(refused) in {0, 2}


def test_missing_ranks_are_named(tmp_path):
    written.megatron(tmp_path, tensor=2, stages=2)
    (tmp_path / "iter_0005000" / "mp_rank_01_000" / "model_optim_rng.pt").unlink()
    with pytest.raises(CheckpointError, match="lacks the folders of 1 of its 4 ranks: mp_rank_01_000"):
        summary_of(tmp_path)


@pytest.mark.parametrize("lost", ["mp_rank_01_*", "mp_rank_*_001"], ids=["a tensor-parallel rank", "a stage"])
def test_ranks_that_are_missing_altogether_are_an_error(tmp_path, lost):
    written.megatron(tmp_path, tensor=2, stages=2)
    for folder in (tmp_path / "iter_0005000").glob(lost):
        shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match="_model_parallel_size 1, but 2 in its arguments"):
        summary_of(tmp_path)


def test_a_layer_that_is_missing_altogether_is_an_error(tmp_path):
    written.neox(tmp_path, tensor=1)
    (tmp_path / "global_step150000" / "layer_03-model_00-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="lacks the files of layer 3"):
        summary_of(tmp_path)


def test_ranks_of_two_layouts_are_an_error(tmp_path):
    for name in ("mp_rank_00_000", "mp_rank_01"):
        (tmp_path / name).mkdir()
        torch.save({"model": {}}, tmp_path / name / "model_optim_rng.pt")
    with pytest.raises(CheckpointError, match="of different layouts"):
        summary_of(tmp_path)


CYCLE = {}
CYCLE["model"] = CYCLE
ODD = {
    "a cycle": {"model": CYCLE},
    "sizes in words": {"model": {}, "args": argparse.Namespace(expert_model_parallel_size="x", num_layers=[1])},
    "a table of one dimension": {"model": {"word_embeddings": {"weight": torch.zeros(3)}}},
    "an iteration in words": {"model": {}, "iteration": "\x1b[2Jabc"},
    "no model": {"model": None},
}


@pytest.mark.parametrize("what", ODD)
def test_values_that_a_format_never_has_are_left_out_or_damage(tmp_path, what):
    (tmp_path / "mp_rank_00").mkdir()
    torch.save(ODD[what], tmp_path / "mp_rank_00" / "model_optim_rng.pt")
    refused = ""
    try:
        json.dumps(asdict(summary_of(tmp_path)) | {"path": str(tmp_path)})
    except DamageError as error:
        refused = str(error)
    assert "Traceback" not in refused
    assert ("unexpected values" in refused) == (what == "a table of one dimension")


@pytest.mark.parametrize(
    "config", ['{"model_type": "gpt2", "hidden_size": [1]}', '{"hidden_act": [1], "n_layer": 1e999}']
)
def test_a_config_with_odd_values_shows_the_others(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    torch.save({"weight": torch.zeros(3), "step": 1}, tmp_path / "pytorch_model.bin")
    summary = summary_of(tmp_path)
    assert (summary.parameters, "hidden_size" in summary.model, "num_layers" in summary.model) == (3, False, False)


def test_missing_layer_files_are_named(tmp_path):
    written.neox(tmp_path)
    (tmp_path / "global_step150000" / "layer_03-model_01-model_states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"lacks files .* layer_03-model_01-model_states\.pt"):
        summary_of(tmp_path)


def test_missing_shards_of_zero_are_named(tmp_path):
    written.zero3(tmp_path)
    (tmp_path / "global_step20" / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match="1 of 4 ranks: zero_pp_rank_1_mp_rank_00"):
        summary_of(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "missing.safetensors"])
def test_an_index_does_not_lead_out_of_its_folder(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.safetensors").write_bytes(b"secret")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"weight": name}}))
    with pytest.raises(CheckpointError, match="names files that are not in its folder"):
        summary_of(folder)


@pytest.mark.parametrize("name", ["../elsewhere", "missing", "a\nb", ".."])
def test_a_tracker_does_not_lead_out_of_its_folder(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "latest").write_text(name)
    with pytest.raises(CheckpointError, match="no such folder is beside it"):
        summary_of(tmp_path / "run")


def test_a_link_to_itself_is_no_checkpoint(tmp_path):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(CheckpointError, match="does not exist"):
        summary_of(tmp_path / "loop")
    with pytest.raises(CheckpointError, match="no checkpoint of a known format"):
        summary_of(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_a_damaged_index_is_refused(tmp_path, content):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(DamageError):
        summary_of(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(DamageError, match="not a safetensors file"):
        summary_of(tmp_path)


def test_an_older_kind_of_sharded_checkpoint_says_what_to_do(tmp_path):
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "zarr", "sharded_backend_version": 1}')
    torch.save({}, tmp_path / "common.pt")
    with pytest.raises(CheckpointError, match="of kind zarr") as raised:
        summary_of(tmp_path)
    assert "--ckpt-format torch_dist" in str(raised.value)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_a_file_without_weights_is_required_to_begin_and_end_as_it_should(tmp_path, is_zip):
    path = tmp_path / "file.pt"
    torch.save({"state": Runs(os.mkdir, "never")}, path, _use_new_zipfile_serialization=is_zip)
    torch_file.require_readable(path)
    content = path.read_bytes()
    for damaged in (b"", b"x" * 100, content[: len(content) // 2] if is_zip else content[1:]):
        path.write_bytes(damaged)
        with pytest.raises(DamageError, match="is damaged, or not a file of torch") as raised:
            torch_file.require_readable(path)
        assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(
    ("shape", "offsets", "problem"),
    [
        ((4, 3), (2, 0), None),
        ((4, 3), (1, 0), "leave out or repeat"),  # two rows overlap, and one is in none
        ((2_000_000_000, 3), (2, 0), "leave out or repeat"),
        ((4, 3), (2,), "of other dimensions"),
        ((4, 3), (-2, 0), "of other dimensions"),
        ((4, 3), ("2", 0), "of other dimensions"),
    ],
)
def test_an_index_whose_pieces_do_not_make_up_a_tensor_is_damaged(tmp_path, shape, offsets, problem):
    pieces = [ChunkStorageMetadata((0, 0), (2, 3)), ChunkStorageMetadata(offsets, (2, 3))]
    tensor = TensorStorageMetadata(TensorProperties(dtype=torch.float32), shape, pieces)
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata({"decoder.layers.w": tensor})))
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    torch.save({}, tmp_path / "common.pt")
    if problem is None:
        assert summary_of(tmp_path).parameters == 12
        return
    with pytest.raises(DamageError, match=rf"\.metadata is damaged: decoder\.layers\.w has .*{problem}"):
        summary_of(tmp_path)
