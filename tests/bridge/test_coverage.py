"""Every name of CUDA in the installed megatron-core is known: an upgrade with a new one fails here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.coverage import unknown_names
from pretrain.bridge.megatron.names import DeviceNames
from pretrain.cpu.backend import CpuBackend

pytestmark = pytest.mark.xdist_group("coverage")  # one worker: one training
UNREACHED_MODULES = {
    "megatron.core.distributed.fsdp": "a recipe cannot ask for FSDP",
    "megatron.core.inference": "generation with caches and CUDA graphs; imported by the model, used by no training",
    "megatron.core.tensor_parallel.inference_layers": "the same",
    "megatron.core.nccl_allocator": "NCCL's registered buffers (nccl_ub), which a recipe cannot ask for",
    "megatron.core.transformer.cuda_graphs": "captured graphs (cuda_graph_impl), which a recipe cannot ask for",
}
UNREACHED_NAMES = {
    ("megatron.core.transformer.transformer_config", "torch.backends.cuda"): "disable_bf16_reduced_precision_matmul",
    ("megatron.core.utils", "torch.cuda.temperature"): "the straggler detector, off unless it is configured",
    ("megatron.core.utils", "torch.cuda.power_draw"): "the same",
    ("megatron.core.utils", "torch.cuda.utilization"): "the same",
    ("megatron.core.utils", "torch.cuda.clock_rate"): "the same",
    ("megatron.core.dist_checkpointing.strategies.torch", "'/cuda'"): "part of a placement that is never used",
}
RUN = """
import json, sys
from pathlib import Path
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend
megatron.install(CpuBackend())
import pretrain.training.assembly
from pretrain.checkpoint import storage
from engine import tiny
with tiny.engine_of(tiny.tiny("parallel.use_distributed_optimizer=true", "precision.dtype=bf16")) as engine:
    tiny.take_step(engine, 0)
    tiny.save(engine, Path(sys.argv[1]) / "saved", 1)
    storage.load(engine, Path(sys.argv[1]) / "saved", weights_only=False)
modules = {name: module for name, module in sys.modules.items() if name.startswith("megatron.core")}
files = {name: getattr(module, "__file__", None) or "" for name, module in modules.items()}
print(json.dumps({name: file for name, file in files.items() if file.endswith(".py")}))
"""


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    """Every module of megatron-core that a training imports, by name: its file."""
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(tmp_path_factory.mktemp("run"))]
    tests = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def unknown(imported):
    """Return names that the bridge does not know, as pairs of module and name."""
    names = DeviceNames(CpuBackend())
    return {
        (module, what.partition(": ")[2])
        for module, file in imported.items()
        for what in unknown_names(Path(file).read_text(), file, names)
    }


def unreached(module):
    """Say which entry of UNREACHED_MODULES covers a module, if any."""
    return next((entry for entry in UNREACHED_MODULES if f"{module}.".startswith(f"{entry}.")), None)


@pytest.mark.full
def test_a_training_imports_the_modules_that_count(imported):
    for module in (
        "models.gpt.gpt_model",
        "tensor_parallel.random",
        "pipeline_parallel.schedules",
        "dist_checkpointing",
    ):
        assert f"megatron.core.{module}" in imported


@pytest.mark.full
def test_every_name_of_cuda_is_known(unknown):
    assert {(module, name) for module, name in unknown if not unreached(module)} - UNREACHED_NAMES.keys() == set()


@pytest.mark.full
def test_every_exemption_is_still_needed(unknown):
    assert unknown >= UNREACHED_NAMES.keys()
    assert {unreached(module) for module, _ in unknown} >= UNREACHED_MODULES.keys()


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.teleport()",
        "import torch\ntorch.cuda.amp.custom_teleport(f)",
        "from torch.cuda import teleport\nteleport()",
        "from torch.cuda.memory import MemPool",
        "from torch import cuda",
        "import torch.cuda.nccl",
        "send = tensor.cuda",
        "check = torch.backends.cuda.matmul",
        "where = 'cuda:0'",
        "where = f'cuda{index}'",
        "where = f'cuda:0/{index}'",
        "kind = 'torch.cuda.Stream'",
    ],
)
def test_an_unknown_name_is_found(source):
    assert unknown_names(source, "made_up.py", DeviceNames(CpuBackend()))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.cuda.synchronize()",
        "import torch\n@torch.cuda.amp.custom_fwd\ndef f(): ...",
        "from torch.cuda import _lazy_call, device as device_ctx",
        "x.cuda(non_blocking=True)",
        "assert x.is_cuda",
        "where = f'cuda:{index}'",
        "x.type() == 'torch.cuda.HalfTensor'",
        "'''cuda'''\ncuda_graph_impl = 'cuda_graph'",
    ],
)
def test_a_known_name_is_not(source):
    assert unknown_names(source, "made_up.py", DeviceNames(CpuBackend())) == []
