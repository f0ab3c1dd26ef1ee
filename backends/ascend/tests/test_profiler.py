"""torch_npu's profiler is called as its documentation has it; a stand-in, on no NPU."""

from types import SimpleNamespace

import torch

from pretrain_ascend import profiler as of_ascend
from pretrain_ascend.backend import AscendBackend


class Profile:
    """torch_npu.profiler.profile: keeps what it was given, and hands the trace over when it stops."""

    def __init__(self, calls, *, activities, on_trace_ready):
        self.calls, self.ready = calls, on_trace_ready
        calls.append(activities)

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.ready(self)


def test_it_records_host_and_device_into_the_folder_of_the_profile(monkeypatch, tmp_path):
    calls = []
    stand_in = SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="cpu", NPU="npu"),
        profile=lambda **given: Profile(calls, **given),
        tensorboard_trace_handler=lambda folder: lambda _profile: calls.append(f"written into {folder}"),
    )
    monkeypatch.setattr(of_ascend, "import_module", {"torch_npu.profiler": stand_in}.__getitem__)
    profiler = AscendBackend().profiler(tmp_path)
    told = profiler.start()
    profiler.stop()
    assert calls == [["cpu", "npu"], "start", f"written into {tmp_path}"]
    assert f"{tmp_path}/*_ascend_pt" in told


def test_a_range_is_one_of_torchs_which_torch_npu_records(tmp_path):
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu) as profile, AscendBackend().profiler(tmp_path).range("layer 3/mlp"):
        torch.ones(2)
    assert "layer 3/mlp" in {event.key for event in profile.key_averages()}
