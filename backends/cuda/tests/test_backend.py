"""The device: each missing part has its own message; answers that follow from a name need no device."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Figures, Unavailable
from pretrain.recipe import make_recipe
from pretrain_cuda import devices, environment, software
from pretrain_cuda.backend import CudaBackend

A100 = "NVIDIA A100-SXM4-80GB"
RECIPE = {
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32},
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 1, "global_batch_size": 8, "train_iters": 1},
    "optimizer": {"lr": 1e-3},
}


@pytest.fixture
def machine(monkeypatch):
    """A machine whose torch, driver and GPUs can be chosen; all is there at first."""

    def choose(*, cuda="13.0", count=2, has_driver=True, cards=((A100, "580.65"),) * 2):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(software, "has_driver", lambda: has_driver)
        monkeypatch.setattr(software, "cards", lambda: tuple(software.Card(*card) for card in cards))

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    choose()
    return choose


def reason():
    answer = CudaBackend().availability()
    assert isinstance(answer, Unavailable)
    assert answer.remedy.endswith(".")
    return answer.reason


def test_gpus_are_counted_and_named(machine):
    assert CudaBackend().availability() == Available(f"2 x {A100}, driver 580.65")


def test_mixed_gpus_are_counted(machine):
    machine(cards=((A100, "580"), ("NVIDIA H200", "580")))
    assert CudaBackend().availability() == Available("2 GPUs")


def test_torch_without_cuda(machine):
    machine(cuda=None, count=0)
    assert reason() == f"torch {torch.__version__} is built without CUDA"


def test_no_driver(machine):
    machine(count=0, has_driver=False)
    assert reason() == "there is no NVIDIA driver (libcuda.so.1)"


def test_no_visible_device(machine, monkeypatch):
    machine(count=0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert reason() == "CUDA_VISIBLE_DEVICES is '-1', which shows no device"


def test_a_driver_without_a_device(machine):
    machine(count=0)
    assert reason() == f"the driver shows no device to torch {torch.__version__} (CUDA 13.0)"


def test_a_rank_without_a_gpu_is_an_error(machine):
    with pytest.raises(BackendError, match=r"rank 2 of this node has no GPU: 2 are visible\.\nStart at most 2 ranks"):
        CudaBackend().device(2)


@pytest.mark.parametrize(
    ("tensor", "card", "queues"),
    [(1, A100, None), (2, A100, "1"), (2, "NVIDIA H200", "1"), (2, "NVIDIA B200", None), (2, "NVIDIA Next", "1")],
)
def test_one_hardware_queue_where_tensor_parallelism_needs_it(machine, tensor, card, queues):
    machine(cards=((card, "580"),))
    recipe = make_recipe(RECIPE, [f"parallel.tensor_model_parallel_size={tensor}"])
    assert CudaBackend().prepare(recipe).get("CUDA_DEVICE_MAX_CONNECTIONS") == queues


def test_without_nvidia_smi_one_queue_is_the_safe_choice(machine):
    machine(cards=())
    recipe = make_recipe(RECIPE, ["parallel.tensor_model_parallel_size=2"])
    assert CudaBackend().prepare(recipe)["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


def test_determinism_needs_cublas_to_know_before_the_context(machine):
    recipe = make_recipe(RECIPE, ["train.deterministic_mode=true"])
    assert CudaBackend().prepare(recipe)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_a_run_sets_no_more_than_it_needs(machine, monkeypatch):
    for name in (*environment.ALLOCATOR, *environment.CACHE):
        monkeypatch.delenv(name, raising=False)
    assert set(CudaBackend().prepare(make_recipe(RECIPE))) == {"PYTORCH_ALLOC_CONF", "TRITON_CACHE_DIR"}


class TestNamed:
    """A device that is not here."""

    def test_it_is_available_and_has_its_name(self):
        named = CudaBackend().named(A100)
        assert named.availability() == Available(f"{A100}, given by name and not looked for")
        assert named.device_name() == A100

    @pytest.mark.parametrize(
        ("name", "bf16"), [("Tesla V100-SXM2-32GB", False), (A100, True), ("NVIDIA H100 80GB HBM3", True)]
    )
    def test_bf16_begins_with_ampere(self, name, bf16):
        named = CudaBackend().named(name)
        assert named.supports(torch.bfloat16) is bf16
        assert named.supports(torch.float16)
        assert not named.supports(torch.int8)

    def test_a_name_that_is_not_known_lists_those_that_are(self):
        with pytest.raises(
            BackendError, match=r"knows no device 'Card 1'\.\nIt knows names that contain one of: .*A100"
        ):
            CudaBackend().named("Card 1")


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        (A100, torch.bfloat16, 312),
        (A100, torch.float32, 19.5),
        ("NVIDIA H100 PCIe", torch.float16, 756),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.4),
        ("NVIDIA H200", torch.bfloat16, 989.4),
        ("NVIDIA B200", torch.bfloat16, 2250),
        ("NVIDIA GB200", torch.bfloat16, 2500),
        ("NVIDIA GB200", torch.float32, 80),
        ("Tesla V100-SXM2-16GB", torch.float16, 125),
        ("Tesla V100-SXM2-16GB", torch.bfloat16, None),
        (A100, torch.float64, None),
        ("NVIDIA H100 80GB HBM3", torch.float8_e4m3fn, 1978.8),
        ("NVIDIA H100 80GB HBM3", torch.float8_e5m2, 1978.8),
        ("NVIDIA H100 PCIe", torch.float8_e4m3fn, 1512),
        ("NVIDIA B200", torch.float8_e4m3fn, 4500),
        (A100, torch.float8_e4m3fn, None),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, None),
    ],
)
def test_peaks_are_the_datasheets_or_none(monkeypatch, name, dtype, tera):
    backend = CudaBackend()
    monkeypatch.setattr(backend, "device_name", lambda: name)
    assert backend.peak_flops(dtype) == (None if tera is None else pytest.approx(tera * 1e12))


GIB, GIGA = 2**30, 1e9


def figures(memory, bandwidth, link, network=None, gpus=None):
    return Figures(
        memory=memory,
        memory_bandwidth=bandwidth,
        link_bandwidth=link,
        node_bandwidth=network,
        devices_per_node=gpus,
        context_memory=512 * 2**20,
        group_memory=256 * 2**20,
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA A100-SXM4-40GB", figures(40 * GIB, 1555 * GIGA, 300 * GIGA, 25 * GIGA, 8)),
        (A100, figures(80 * GIB, 2039 * GIGA, 300 * GIGA, 25 * GIGA, 8)),
        ("NVIDIA A100-PCIE-40GB", figures(40 * GIB, 1555 * GIGA, 32 * GIGA)),
        ("NVIDIA A100 80GB PCIe", figures(80 * GIB, 1935 * GIGA, 32 * GIGA)),
        ("NVIDIA A100-SXM-64GB", figures(None, None, None)),
        ("Tesla V100-SXM2-16GB", figures(16 * GIB, 900 * GIGA, 150 * GIGA, 6.25 * GIGA, 8)),
        ("Tesla V100-SXM3-32GB-H", figures(32 * GIB, 900 * GIGA, 150 * GIGA, 6.25 * GIGA, 16)),
        ("NVIDIA H100 80GB HBM3", figures(80 * GIB, 3350 * GIGA, 450 * GIGA, 50 * GIGA, 8)),
        ("NVIDIA H200", figures(141 * GIB, 4800 * GIGA, 450 * GIGA, 50 * GIGA, 8)),
        ("NVIDIA B200", figures(180 * GIB, 8000 * GIGA, 900 * GIGA, 50 * GIGA, 8)),
        ("NVIDIA GB200", figures(186 * GIB, 8000 * GIGA, 900 * GIGA, 50 * GIGA, 72)),
        ("NVIDIA GeForce RTX 4090", Figures()),
    ],
)
def test_figures_are_the_datasheets_or_none(monkeypatch, name, expected):
    backend = CudaBackend()
    monkeypatch.setattr(backend, "device_name", lambda: name)
    assert backend.figures() == expected


def test_a_named_device_has_figures():
    assert CudaBackend().named(A100).figures().memory == 80 * GIB


@pytest.mark.parametrize(("name", "number"), [(A100, 108), ("NVIDIA H100 80GB HBM3", 132), ("NVIDIA Next", 0)])
@pytest.mark.usefixtures("no_device")
def test_multiprocessors_are_known_by_name(name, number):
    assert devices.multiprocessors_of(name) == number


class TestDriver:
    """Output of nvidia-smi."""

    @pytest.fixture
    def smi(self, tmp_path, monkeypatch):
        def install(script):
            program = tmp_path / "nvidia-smi"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        software.cards.cache_clear()
        yield install
        software.cards.cache_clear()

    def test_names_and_driver_are_read(self, smi):
        smi("echo 'NVIDIA H200, 570.86.15'; echo 'NVIDIA H200, 570.86.15'")
        assert software.cards() == (software.Card("NVIDIA H200", "570.86.15"),) * 2

    @pytest.mark.parametrize("script", ["exit 9", "echo NVIDIA-SMI has failed", "true"])
    def test_a_program_that_fails_names_nothing(self, smi, script):
        smi(script)
        assert software.cards() == ()


def test_asking_opens_no_device(machine):
    code = (
        "import sys; from pretrain_cuda.backend import CudaBackend; CudaBackend().availability();"
        "import torch; assert not torch.cuda.is_initialized(); assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
