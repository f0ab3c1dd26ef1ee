"""The device: each missing part has its own message; answers that follow from a name need no device."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from ascend_kit import operators
from pretrain.errors import BackendError
from pretrain.plugins.backend import Available, Figures, Unavailable
from pretrain.recipe import make_recipe
from pretrain_ascend import backend, software
from pretrain_ascend.backend import AscendBackend

VERSION = software.release(torch.__version__)
RECIPE = {
    "model": {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32},
    "tokenizer": {"type": "bytes"},
    "data": {"path": "corpus"},
    "train": {"micro_batch_size": 1, "global_batch_size": 8, "train_iters": 1},
    "optimizer": {"lr": 1e-3},
}


@pytest.fixture
def machine(monkeypatch):
    """A machine whose torch_npu, CANN and NPUs can be chosen; all is there at first."""
    chosen = SimpleNamespace(inf_nan=True, calls=[])

    def choose(*, version=VERSION, fault=None, cann=True, paired="", count=8, name="Ascend910B3", inf_nan=True):
        def import_torch_npu(module):
            if fault is not None:
                raise fault

        def load(library):
            if not cann:
                raise OSError(f"{library}: cannot open shared object file")

        monkeypatch.setattr("pretrain.plugins.installed.version", lambda _: version)
        monkeypatch.setattr(software, "cann", lambda: "8.5.0")
        monkeypatch.setattr(software, "unpaired", lambda *_: paired)
        monkeypatch.setattr("pretrain.plugins.installed.import_module", import_torch_npu)
        monkeypatch.setattr("pretrain.plugins.installed.has", lambda _: False)
        monkeypatch.setattr(ctypes, "CDLL", load)
        npu = SimpleNamespace(
            device_count=lambda: count,
            get_device_name=lambda: name,
            is_available=lambda: count > 0,
            set_device=chosen.calls.append,
            config=SimpleNamespace(allow_internal_format=True),
            utils=SimpleNamespace(is_support_inf_nan=lambda: inf_nan),
        )
        monkeypatch.setattr(backend, "_npu", lambda: npu)
        monkeypatch.setattr("pretrain_ascend.devices.here", lambda: name)
        chosen.npu = npu

    for variable in ("ASCEND_RT_VISIBLE_DEVICES", backend.PEAK, "ASCEND_HOME_PATH"):
        monkeypatch.delenv(variable, raising=False)
    chosen.choose = choose
    choose()
    return chosen


def answer():
    answer = AscendBackend().availability()
    assert isinstance(answer, Unavailable)
    assert answer.remedy.endswith(".")
    return answer


def test_npus_are_counted(machine):
    assert AscendBackend().availability() == Available(f"8 NPUs, torch_npu {VERSION}, CANN 8.5.0")


def test_a_cann_that_huawei_pairs_with_other_releases_is_a_warning(machine):
    machine.choose(paired="Huawei pairs ...")
    detail = f"8 NPUs, torch_npu {VERSION}, CANN 8.5.0\nwarning: Huawei pairs ..."
    assert AscendBackend().availability() == Available(detail)


def test_torch_npu_is_not_installed(machine):
    machine.choose(version="")
    assert answer().reason == "torch_npu is not installed"
    assert answer().remedy.startswith(f"pip install torch_npu=={VERSION}, ")


@pytest.mark.parametrize("version", ["2.7.1", "2.13.1", "3.0.0.post1"])
def test_torch_npu_is_of_another_version_than_torch(machine, version):
    machine.choose(version=version)
    assert answer().reason == f"torch_npu {version} is installed for torch {torch.__version__}; the versions must agree"


@pytest.mark.parametrize("version", [VERSION, f"{VERSION}.post2", f"{VERSION}rc1"])
def test_builds_of_one_release_agree(machine, version):
    machine.choose(version=version)
    assert isinstance(AscendBackend().availability(), Available)


def test_cann_is_not_there(machine):
    machine.choose(fault=ImportError("libhccl.so: cannot open shared object file"), cann=False)
    assert answer().reason == "CANN is not available: libascendcl.so cannot be loaded"
    assert "set_env.sh" in answer().remedy


@pytest.mark.parametrize("fault", [ImportError("undefined symbol: aclrtX"), RuntimeError("CANN 7 is too old")])
def test_torch_npu_does_not_load(machine, fault):
    machine.choose(fault=fault)
    expected = f"torch_npu {VERSION} is installed, but its import failed: {type(fault).__name__}: {fault}"
    assert answer().reason == expected


def test_no_npu(machine):
    machine.choose(count=0)
    assert answer().reason == f"the driver shows no NPU to torch_npu {VERSION}"


def test_no_visible_npu(machine, monkeypatch):
    machine.choose(count=0)
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "9")
    assert answer().reason == "ASCEND_RT_VISIBLE_DEVICES is '9', which shows no device"


class TestDevice:
    """The one of a rank."""

    def test_it_becomes_the_current_one_and_keeps_torchs_layout(self, machine, monkeypatch):
        monkeypatch.setattr(torch, "device", lambda *named: named)  # torch knows "npu" only with torch_npu
        assert AscendBackend().device(3) == ("npu", 3)
        assert machine.calls == [3]
        assert machine.npu.config.allow_internal_format is False

    def test_a_rank_without_one_is_an_error(self, machine):
        machine.choose(count=2)
        with pytest.raises(
            BackendError, match=r"rank 2 of this node has no NPU: 2 are visible\.\nStart at most 2 ranks"
        ):
            AscendBackend().device(2)


class TestEnvironment:
    """Variables that are set before the device is opened, where the user has not set them."""

    @pytest.fixture(autouse=True)
    def nothing_set(self, monkeypatch):
        for name in ("HCCL_EXEC_TIMEOUT", "ASCEND_RT_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize(("minutes", "seconds"), [(10, 1836), (30, 1836), (31, 1840), (60, 3580), (300, 17340)])
    def test_hccl_gives_up_shortly_before_torch_and_never_before_cann_would(self, minutes, seconds):
        """CANN's own is 1836 s; a 910A, which compiles every shape in the first step, takes 17340 at most."""
        recipe = make_recipe(RECIPE, [f"parallel.distributed_timeout_minutes={minutes}"])
        variables = AscendBackend().prepare(recipe)
        assert variables["HCCL_EXEC_TIMEOUT"] == str(seconds)
        assert variables["HCCL_EVENT_TIMEOUT"] == str(seconds + 30)

    @pytest.mark.parametrize(("given", "event"), [("1800", "1830"), ("7200", "7230"), ("0", "0"), ("long", None)])
    def test_an_event_is_waited_for_longer_than_the_collective_of_the_user(self, monkeypatch, given, event):
        monkeypatch.setenv("HCCL_EXEC_TIMEOUT", given)
        assert AscendBackend().prepare(make_recipe(RECIPE)).get("HCCL_EVENT_TIMEOUT") == event

    def test_memory_dispatch_and_cores_are_as_huawei_recommends(self):
        variables = AscendBackend().prepare(make_recipe(RECIPE))
        chosen = {name: value for name, value in variables.items() if not name.startswith("HCCL")}
        assert chosen == {
            "TASK_QUEUE_ENABLE": "2",
            "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
            "CPU_AFFINITY_CONF": "1",
            "TORCH_HCCL_TRACE_BUFFER_SIZE": "2000",
        }

    def test_hidden_devices_leave_the_cores_alone(self, monkeypatch):
        """Two runs of one machine would else be bound to the same cores: both begin with device 0."""
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
        assert "CPU_AFFINITY_CONF" not in AscendBackend().prepare(make_recipe(RECIPE))

    def test_the_allocator_is_configured_once(self, monkeypatch):
        """torch_npu ends a process that has both variables."""
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
        assert "PYTORCH_NPU_ALLOC_CONF" not in AscendBackend().prepare(make_recipe(RECIPE))

    def test_variables_of_all_hosts_and_of_one_host(self):
        assert "PYTORCH_NPU_ALLOC_CONF".startswith(AscendBackend.exported_variables)
        assert "HCCL_IF_IP" in AscendBackend.own_variables
        assert "HCCL_SOCKET_IFNAME" not in AscendBackend.own_variables

    @pytest.mark.parametrize(("minutes", "seconds"), [(1, 120), (2, 120), (120, 7200), (1000, 7200)])
    def test_the_connection_waits_within_its_limits(self, minutes, seconds):
        recipe = make_recipe(RECIPE, [f"parallel.distributed_timeout_minutes={minutes}"])
        assert AscendBackend().prepare(recipe)["HCCL_CONNECT_TIMEOUT"] == str(seconds)

    def test_determinism_is_for_hccl_and_for_matmuls(self):
        usual = AscendBackend().prepare(make_recipe(RECIPE))
        repeatable = AscendBackend().prepare(make_recipe(RECIPE, ["train.deterministic_mode=true"]))
        added = dict(repeatable.items() - usual.items())
        assert added == {"HCCL_DETERMINISTIC": "true", "CLOSE_MATMUL_K_SHIFT": "1"}


class TestOverflow:
    """fp16 that saturates has a sticky flag; inf and nan need none."""

    def test_none_where_inf_and_nan_are_kept(self, machine):
        assert AscendBackend().overflow() is None

    def test_the_flag_is_read_and_cleared(self, machine, monkeypatch):
        machine.choose(name="Ascend910A", inf_nan=False)
        overflow = AscendBackend().overflow()
        monkeypatch.setattr("pretrain_ascend.kernels.operators.call", operators.call)
        monkeypatch.setattr("pretrain_ascend.kernels.float_status._words", lambda: torch.zeros(8))
        assert overflow.read().item() == 0
        operators.status[0] = 3
        flag = overflow.read()
        assert (flag.item(), flag.dtype, flag.shape) == (1.0, torch.float32, ())
        assert overflow.read().item() == 1, "reading must not clear it"
        overflow.clear()
        assert overflow.read().item() == 0


class TestNamed:
    """A device that is not here."""

    def test_it_is_available_and_has_its_name(self):
        named = AscendBackend().named("Ascend910B3")
        assert named.availability() == Available("Ascend910B3, given by name and not looked for")
        assert named.device_name() == "Ascend910B3"

    @pytest.mark.parametrize(
        ("name", "other"),
        [("Ascend910A", False), ("Ascend910B", False), ("Ascend910B1", True), ("Ascend910_9362", True)],
    )
    def test_matmuls_of_bf16_and_of_fp32_begin_with_a2(self, name, other):
        """The 910A family multiplies fp32 in fp16; a training in fp32 would be one in fp16 without a loss scale."""
        named = AscendBackend().named(name)
        assert named.supports(torch.bfloat16) is other
        assert named.supports(torch.float16)
        assert named.supports(torch.float32) is other
        assert not named.supports(torch.float64)

    @pytest.mark.parametrize(("name", "batched"), [("Ascend910A", False), ("Ascend910B3", True), ("Ascend950DT", True)])
    def test_messages_are_batched_from_a2_on(self, name, batched):
        assert AscendBackend().named(name).point_to_point().batched is batched

    def test_a_name_that_is_not_known_lists_those_that_are(self):
        with pytest.raises(BackendError, match=r"knows no device 'Card 1'\.\nIt knows .*Ascend910B3.*Ascend950\.\.\."):
            AscendBackend().named("Card 1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_ranks_sum_everything_but_float64(dtype):
    assert AscendBackend().supports_reduction(dtype)
    assert not AscendBackend().supports_reduction(torch.float64)


class TestPeak:
    """The denominator of MFU: never a figure that Huawei has not published."""

    @pytest.mark.parametrize(
        ("name", "dtype", "tera"),
        [
            ("Ascend910A", torch.float16, 256),
            ("Ascend910A", torch.bfloat16, None),
            ("Ascend910A", torch.float32, None),
            ("Ascend910B3", torch.bfloat16, 313),
            ("Ascend910B2C", torch.bfloat16, None),
            ("Ascend910_9391", torch.bfloat16, None),
            ("Ascend910_9392", torch.bfloat16, 400),
        ],
    )
    def test_only_huaweis_own_figures(self, machine, name, dtype, tera):
        found = AscendBackend().named(name).peak_flops(dtype)
        assert found == (None if tera is None else tera * 1e12)

    def test_the_users_peak_overrides_the_table(self, machine, monkeypatch):
        monkeypatch.setenv(backend.PEAK, "295")
        assert AscendBackend().named("Ascend910B3").peak_flops(torch.bfloat16) == 295e12
        assert AscendBackend().named("Ascend910B3").peak_flops(torch.float32) is None

    @pytest.mark.parametrize("given", ["fast", "", "0", "-3", "nan", "inf"])
    def test_a_peak_that_is_not_a_positive_number_is_an_error(self, machine, monkeypatch, given):
        monkeypatch.setenv(backend.PEAK, given)
        with pytest.raises(BackendError, match=rf"{backend.PEAK} is '{given}'; it must be a number above 0\.\n"):
            AscendBackend().named("Ascend910B3").peak_flops(torch.float16)


def test_figures_are_those_of_the_chip_that_is_named_or_here(machine):
    assert AscendBackend().figures() == AscendBackend().named("Ascend910B3").figures()
    assert AscendBackend().figures() == Figures(
        memory=64 * 2**30,
        memory_bandwidth=1.6e12,
        link_bandwidth=196e9,
        node_bandwidth=25e9,
        devices_per_node=8,
        group_memory=400 * 2**20,
        dropout_bits=1,
    )
    assert AscendBackend().named("Ascend950PR").figures() == Figures()


def test_the_environment_of_a_run_names_chip_and_libraries(machine):
    assert AscendBackend().describe() == {
        "device": "Ascend910B3",
        "family": "A2",
        "torch_npu": VERSION,
        "cann": "8.5.0",
        "overflow": "inf and nan",
        "peak_tflops_fp16": "313",
    }


@pytest.mark.full
@pytest.mark.skipif(bool(software.version()), reason="torch_npu is installed")
def test_a_machine_without_npu_software_gets_an_error_of_three_lines():
    recipe = __file__.rpartition("/backends/")[0] + "/recipes/neox20b.yml"
    command = [sys.executable, "-m", "pretrain.cli.main", "--backend", "ascend", recipe]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    first, second, third = done.stderr.splitlines()
    assert first.endswith("has no usable device: torch_npu is not installed")
    assert second == f"pip install torch_npu=={VERSION}, in an environment whose torch is of that version."
    assert third == "It needs Huawei's driver and CANN on this machine."
