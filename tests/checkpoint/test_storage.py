"""A checkpoint of the engine holds everything a resumed run needs; one that does not fit is an error in two lines."""

from __future__ import annotations

import io
import pickle
import shutil
from dataclasses import replace
from enum import Enum
from pathlib import Path

import pytest
import torch

from engine import tiny
from engine.layouts import STAGE
from pretrain.checkpoint import checksums, generators, storage
from pretrain.checkpoint.checksums import file_digest
from pretrain.checkpoint.storage import read_common
from pretrain.errors import CheckpointError, DamageError

SMALL = ("model.num_layers=2",)
DROPOUT = ("model.hidden_dropout=0.1", "model.attention_dropout=0.1")
FP16 = ("precision.dtype=fp16", "precision.initial_loss_scale=1024", "precision.loss_scale_window=2")
ZERO1 = ("parallel.use_distributed_optimizer=true",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of two layers after three iterations."""
    directory = tmp_path_factory.mktemp("checkpoints") / "saved"
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, directory, 3)
    return directory


@pytest.fixture
def damaged(saved, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(saved, tmp_path / "damaged")


def refusal(directory, *overrides, weights_only=False):
    """Return the message with which a checkpoint is refused; for damage, the caller adds the advice."""
    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine, pytest.raises(CheckpointError) as caught:
        storage.load(engine, directory, weights_only=weights_only)
    message = str(caught.value)
    assert str(directory) in message
    assert message.count("\n") + isinstance(caught.value, DamageError) in {1, 2}
    assert len(message) < 500
    assert "weights_only" not in message  # torch's advice to run what is in the file
    return message


def sign(directory):
    """Write matching checksums, as an attacker would."""
    (directory / checksums.FILE).unlink(missing_ok=True)
    checksums.write(directory, {})


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="fp32"),
        pytest.param(ZERO1, id="fp32-zero1", marks=pytest.mark.full),
        pytest.param(FP16, id="fp16", marks=pytest.mark.full),
        pytest.param((*FP16, *ZERO1), id="fp16-zero1"),
        pytest.param(("precision.dtype=bf16",), id="bf16", marks=pytest.mark.full),
        pytest.param(("precision.dtype=bf16", *ZERO1), id="bf16-zero1"),
    ],
)
def test_a_stopped_run_resumes_bit_for_bit(overrides, tmp_path):
    recipe = tiny.tiny(*SMALL, *DROPOUT, *overrides)
    with tiny.engine_of(recipe) as engine:
        tiny.train(engine, 0, 3)
        tiny.save(engine, tmp_path / "saved", 3)
        uninterrupted = tiny.train(engine, 3, 6)
        expected = (engine.loss_scale, engine.learning_rate, engine.parameters_norm().item())
    with tiny.engine_of(recipe) as engine:
        torch.rand(7)  # generators are elsewhere
        loaded = storage.load(engine, tmp_path / "saved", weights_only=False)
        assert loaded.progress == {"iteration": 3, "consumed_samples": 24, "skipped_iterations": 0}
        assert loaded.notices == []
        assert tiny.train(engine, 3, 6) == uninterrupted
        assert (engine.loss_scale, engine.learning_rate, engine.parameters_norm().item()) == expected


@pytest.mark.full
@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param((), id="", marks=pytest.mark.full),
        pytest.param(ZERO1, id="zero1"),
        pytest.param(STAGE[2], id="deepspeed", marks=pytest.mark.full),
    ],
)
def test_a_run_stopped_before_its_first_update_resumes_bit_for_bit(overrides, tmp_path):
    """The first steps in fp16 overflow and are skipped, so that no Adam has moments when the run stops."""
    scale = ("precision.initial_loss_scale=17179869184", "precision.hysteresis=1")
    recipe = tiny.tiny(*SMALL, *DROPOUT, "precision.dtype=fp16", *scale, *overrides)
    with tiny.engine_of(recipe) as engine:
        assert all(tiny.take_step(engine, iteration).skipped for iteration in range(2))
        tiny.save(engine, tmp_path / "saved", 2)
        uninterrupted = [told(engine, iteration) for iteration in range(2, 22)]
    assert {skipped for _, _, skipped, *_ in uninterrupted} == {True, False}
    with tiny.engine_of(recipe) as engine:
        assert storage.load(engine, tmp_path / "saved", weights_only=False).notices == []
        assert [told(engine, iteration) for iteration in range(2, 22)] == uninterrupted


def told(engine, iteration):
    """Take a step, and return its observable results."""
    step = tiny.take_step(engine, iteration)
    norm = None if step.skipped else step.grad_norm.item()
    return repr(step.loss.item()), norm, step.skipped, engine.loss_scale, engine.parameters_norm().item()


@pytest.mark.parametrize(
    ("other", "changed"),
    [
        ({"process_group": "another"}, "the device has"),
        ({"device": "another"}, "the device has"),
        ({"world_size": 2}, "the layout has"),
        ({"device": "another", "world_size": 2}, "the layout and the device have"),
    ],
    ids=["process group", "device with this process group", "ranks", "both"],
)
def test_a_checkpoint_of_another_device_resumes_with_generators_of_this_one(tmp_path, monkeypatch, other, changed):
    """States of one kind of generator are no states of another; torch refuses them."""
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 1)
        there = generators.layout() | other
        monkeypatch.setattr(generators, "layout", lambda: there)
        tiny.save(engine, tmp_path / "saved", 1)
        monkeypatch.undo()
        torch.rand(7)
        before = torch.get_rng_state()
        loaded = storage.load(engine, tmp_path / "saved", weights_only=False)
        assert torch.equal(torch.get_rng_state(), before)
    assert loaded.notices == [f"{changed} changed: random generators are seeded again from train.seed"]


def test_a_checkpoint_from_before_devices_were_noted_is_one_of_this_device(tmp_path, monkeypatch):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.train(engine, 0, 1)
        noted = {"device", "process_group"}
        older = {name: value for name, value in generators.layout().items() if name not in noted}
        monkeypatch.setattr(generators, "layout", lambda: older)
        tiny.save(engine, tmp_path / "saved", 1)
        monkeypatch.undo()
        assert storage.load(engine, tmp_path / "saved", weights_only=False).notices == []


@pytest.mark.full
def test_saving_does_not_disturb_the_training(tmp_path):
    recipe = tiny.tiny(
        *SMALL, *DROPOUT, *ZERO1, "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"
    )
    with tiny.engine_of(recipe) as engine:
        undisturbed = tiny.train(engine, 0, 4)
    with tiny.engine_of(recipe) as engine:
        disturbed = tiny.train(engine, 0, 2)
        tiny.save(engine, tmp_path / "saved", 2)
        assert disturbed + tiny.train(engine, 2, 4) == undisturbed


@pytest.mark.full
def test_an_engine_may_load_twice(saved):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        storage.load(engine, saved, weights_only=False)
        once = tiny.train(engine, 3, 5)
        storage.load(engine, saved, weights_only=False)
        assert tiny.train(engine, 3, 5) == once


@pytest.mark.parametrize("overrides", [(), ZERO1, ("precision.dtype=bf16",)], ids=["same", "zero1", "bf16"])
def test_weights_alone_start_a_new_run(saved, overrides):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        storage.load(engine, saved, weights_only=False)
        weights = engine.parameters_norm().item()
    with tiny.engine_of(tiny.tiny(*SMALL, *overrides)) as engine:
        storage.load(engine, saved, weights_only=True)
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-3 if overrides else 0)
        assert engine.learning_rate == 0.0  # the warm-up begins
        tiny.train(engine, 0, 1)  # with a learning rate of zero, main weights that were not loaded would show
        assert engine.parameters_norm().item() == pytest.approx(weights, rel=1e-3 if overrides else 0)


def test_the_common_part_can_be_read_by_one_rank(saved):
    common = read_common(saved)
    assert common["progress"]["iteration"] == 3
    assert common["model"]["num_layers"] == 2
    assert common["model"]["vocab_size"] == tiny.VOCAB_SIZE


@pytest.mark.parametrize("weights_only", [False, True])
@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.num_layers=4", "model.num_layers 2 (recipe: 4)"),
        ("model.hidden_size=128", "model.hidden_size 64 (recipe: 128)"),
        ("model.layernorm_epsilon=1e-6", "model.layernorm_epsilon 1e-05 (recipe: 1e-06)"),
        ("model.activation=gelu_tanh", "model.activation gelu (recipe: gelu_tanh)"),
        ("model.untie_embeddings_and_output_weights=true", "untie_embeddings_and_output_weights False (recipe: True)"),
    ],
)
def test_another_model_is_refused(saved, override, named, weights_only):
    assert named in refusal(saved, override, weights_only=weights_only)


@pytest.mark.parametrize(
    ("override", "notice"),
    [
        ("optimizer.name=adam", "optimizer.name: adam from here on; it was adamw"),
        ("optimizer.adam_beta1=0.8", "optimizer.adam_beta1: 0.8 from here on; it was 0.9"),
        ("optimizer.adam_beta2=0.95", "optimizer.adam_beta2: 0.95 from here on; it was 0.999"),
        ("optimizer.clip_grad=0.5", "optimizer.clip_grad: 0.5 from here on; it was 1.0"),
        ("data.eod_mask_loss=true", "data.eod_mask_loss: True from here on; it was False"),
    ],
)
def test_another_setting_of_the_training_is_reported_and_used(saved, override, notice):
    with tiny.engine_of(tiny.tiny(*SMALL, override)) as engine:
        assert storage.load(engine, saved, weights_only=False).notices == [notice]


@pytest.mark.parametrize("engine", [(), STAGE[2]], ids=["megatron", "deepspeed"])
@pytest.mark.parametrize("weights_only", [False, True])
def test_weights_that_the_model_or_the_checkpoint_lacks_are_refused_by_name(damaged, engine, weights_only):
    """Whatever settings tell: two norms of a model that has more than this one, and without its last norm."""
    index = pickle.loads((damaged / ".metadata").read_bytes())
    entries = index.state_dict_metadata
    norm = entries.pop("decoder.final_layernorm.weight")
    entries["decoder.layers.self_attention.q_layernorm.weight"] = replace(norm, size=torch.Size([2, 64]))
    (damaged / ".metadata").write_bytes(pickle.dumps(index))
    sign(damaged)
    layers = ", ".join(f"decoder.layers.{number}.self_attention.q_layernorm.weight" for number in (0, 1))
    assert (
        "is of another model: it lacks 1 weight (decoder.final_layernorm.weight) and "
        f"has 2 weights ({layers}) that the model lacks."
    ) in refusal(damaged, *engine, weights_only=weights_only)


def test_another_tokenizer_is_refused(saved, monkeypatch):
    monkeypatch.setattr(tiny, "VOCAB_SIZE", 299)
    assert f"has 299 tokens, the one that {saved} was trained with 300." in refusal(saved)


def test_another_precision_is_refused(saved):
    assert "precision.dtype fp32 (recipe: bf16)" in refusal(saved, "precision.dtype=bf16")


def test_a_folder_without_checkpoint_is_refused(tmp_path):
    assert "is not a complete checkpoint: metadata.json, common.pt, .metadata is missing" in refusal(
        tmp_path / "nothing"
    )


FILES = ("metadata.json", "common.pt", ".metadata", "__0_0.distcp", "__0_1.distcp", checksums.FILE)


@pytest.mark.parametrize("file", ["common.pt", "__0_1.distcp", checksums.FILE])
def test_a_flipped_bit_is_refused_by_the_files_name(damaged, file):
    with (damaged / file).open("r+b") as opened:
        opened.seek((damaged / file).stat().st_size // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 4]))
    assert f"{damaged / file} is damaged: " in refusal(damaged, weights_only=file == "common.pt")


def test_a_checkpoint_lists_all_of_its_files(saved):
    assert set(checksums.read(saved)) | {checksums.FILE} == {entry.name for entry in saved.iterdir()}
    assert set(FILES) == {entry.name for entry in saved.iterdir()}


def test_sharded_files_are_digested_while_they_are_written(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(checksums, "file_digest", lambda path: (read.append(path.name), file_digest(path))[1])
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        tiny.save(engine, tmp_path / "saved", 0)
    assert sorted(read) == [".metadata", "common.pt", "metadata.json"]


@pytest.mark.parametrize("file", ["metadata.json", "__0_0.distcp", checksums.FILE])
def test_a_missing_file_is_refused_by_its_name(damaged, file):
    (damaged / file).unlink()
    assert refusal(damaged).startswith(f"{damaged / file} is missing.")


def spoil(path, damage):
    """Damage a file."""
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "garbage": b"\xffgarbage" * 100}[damage])


@pytest.fixture
def earlier(damaged):
    """A checkpoint of a version without checksums."""
    (damaged / checksums.FILE).unlink()
    torch.save(torch.load(damaged / "common.pt", weights_only=False) | {"format": 2}, damaged / "common.pt")
    return damaged


def test_a_checkpoint_without_checksums_is_read_with_a_notice(earlier):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        (notice,) = storage.load(engine, earlier, weights_only=False).notices
    assert notice == f"{earlier} has no checksums yet: damage is not detected"


@pytest.mark.parametrize("file", ["metadata.json", "common.pt", ".metadata", "__0_0.distcp"])
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "garbage"])
def test_a_damaged_checkpoint_without_checksums_is_refused(earlier, file, damage):
    spoil(earlier / file, damage)
    refusal(earlier)


def test_a_later_format_is_refused(damaged):
    common = torch.load(damaged / "common.pt", weights_only=False)
    torch.save(common | {"format": 99}, damaged / "common.pt")
    sign(damaged)
    assert "has checkpoint format 99; this version reads 2 and 3." in refusal(damaged)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def trap(tmp_path):
    """A trap: its file must not exist after the test."""
    yield Trap(tmp_path / "sprung")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("variable", [None, "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"])
def test_common_state_runs_no_code(damaged, trap, monkeypatch, variable):
    """The variable is set where older checkpoints of other programs are loaded: torch.load then unpickles."""
    if variable:
        monkeypatch.setenv(variable, "1")
    torch.save({"progress": trap}, damaged / "common.pt")
    sign(damaged)
    assert "which could run code. Nothing was executed." in refusal(damaged)


def test_an_index_runs_no_code(damaged, trap):
    (damaged / ".metadata").write_bytes(pickle.dumps(trap))
    sign(damaged)
    touch = f"{Path.touch.__module__}.Path.touch"  # pathlib._local from Python 3.13 on
    assert f".metadata holds {touch}, which is not part of an index" in refusal(damaged)


def test_an_index_reaches_nothing_through_torchs_modules(damaged, trap):
    opcodes = b"\x80\x04\x8c\x27torch.distributed.checkpoint.filesystem\x8c\x09os.system\x93\x8c\x04true\x85R."
    (damaged / ".metadata").write_bytes(opcodes)
    sign(damaged)
    assert ".metadata holds torch.distributed.checkpoint.filesystem.os.system" in refusal(damaged)


class ByName(pickle.Pickler):
    """Writes members of enumerations as Python 3.11.0 to 3.11.3 does, which Debian 12 has."""

    def reducer_override(self, value):
        return (getattr, (type(value), value.name)) if isinstance(value, Enum) else NotImplemented


def test_an_index_of_early_python_3_11_is_read(damaged):
    written = io.BytesIO()
    ByName(written).dump(pickle.loads((damaged / ".metadata").read_bytes()))
    assert b"getattr" in written.getvalue()
    (damaged / ".metadata").write_bytes(written.getvalue())
    sign(damaged)
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        assert storage.load(engine, damaged, weights_only=False).notices == []


@pytest.mark.parametrize("owner", [torch.Size, torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING])
def test_an_index_takes_members_of_enumerations_alone(damaged, owner):
    opcodes = f"\x80\x04cbuiltins\ngetattr\nc{owner.__module__}\n{owner.__name__}\n\x8c\x03mro\x86R.".encode("latin1")
    (damaged / ".metadata").write_bytes(opcodes)
    sign(damaged)
    assert ".metadata holds builtins.getattr of what is no enumeration" in refusal(damaged)


def test_sharded_objects_run_no_code(tmp_path, monkeypatch, trap):
    with tiny.engine_of(tiny.tiny(*SMALL)) as engine:
        monkeypatch.setattr(generators, "states", lambda: {"python": trap})
        tiny.save(engine, tmp_path / "saved", 0)
    monkeypatch.undo()
    assert "is damaged" in refusal(tmp_path / "saved")
