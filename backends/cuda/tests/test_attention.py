"""Order of the attention offers; answering imports no library. None of these kernels was run here on a GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from pretrain.conformance import examples
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain_cuda import attention

A100, H100, B200, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA B200", "Tesla V100-SXM2-16GB"


def on(name, dtype=torch.bfloat16, **asked):
    return replace(examples.attention(dtype, **asked), device_type="cuda", device_name=name)


def offered(request):
    return [answer.name for answer in attention.answers(request) if isinstance(answer, Offer)]


@pytest.fixture
def everything_installed(monkeypatch):
    monkeypatch.setattr("pretrain.plugins.installed.has", lambda _: True)
    monkeypatch.setattr("pretrain.plugins.installed.provider", lambda distribution: f"{distribution} 9")
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: None)


AMPERE = ["flash_attn_2", "sdpa_flash", "sdpa_cudnn"]
HOPPER = ["flash_attn_3", "flash_attn_4", "sdpa_cudnn", "flash_attn_2", "sdpa_flash"]
BLACKWELL = ["flash_attn_4", "sdpa_cudnn", "flash_attn_2", "sdpa_flash"]
LAST = ["sdpa_efficient", "triangle_triton"]
FLASH = ["transformer_engine", *LAST]


@pytest.mark.parametrize(("name", "first"), [(A100, AMPERE), (H100, HOPPER), (B200, BLACKWELL)])
@pytest.mark.usefixtures("everything_installed")
def test_each_architecture_has_its_order(name, first):
    assert offered(on(name)) == first + FLASH


@pytest.mark.parametrize("name", [A100, H100, B200])
@pytest.mark.usefixtures("everything_installed")
def test_dropout_leaves_flash_attn_2_and_what_is_made_of_it(name):
    assert offered(on(name, dropout=0.1)) == ["flash_attn_2", "sdpa_flash", *FLASH]


@pytest.mark.parametrize(("name", "first"), [(A100, []), (H100, ["flash_attn_3"]), (B200, [])])
@pytest.mark.usefixtures("everything_installed")
def test_a_window_leaves_flash_attn_2_and_3_and_a_mask(name, first):
    assert offered(on(name, window=9)) == [*first, "flash_attn_2", "sdpa_efficient"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        (A100, ["flash_attn_2"]),
        (H100, ["flash_attn_3", "flash_attn_4", "flash_attn_2"]),
        (B200, ["flash_attn_4", "flash_attn_2"]),
    ],
)
@pytest.mark.usefixtures("everything_installed")
def test_fewer_queries_than_keys_leave_flash_kernels_and_the_triangle(name, first):
    """Masks of cuDNN and efficient begin at the first key; flash-attn 4 is not known to take them with documents."""
    assert offered(on(name, keys=64)) == [*first, "sdpa_flash", "triangle_triton"]
    without_4 = [each for each in first if each != "flash_attn_4"]
    assert offered(on(name, keys=64, mask=Mask.DOCUMENTS)) == [*without_4, "sdpa_flash", "triangle_triton"]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        (A100, ["flash_attn_2", "sdpa_flash"]),
        (H100, ["flash_attn_3", "flash_attn_4", "flash_attn_2", "sdpa_flash"]),
        (B200, ["flash_attn_4", "flash_attn_2", "sdpa_flash"]),
        (V100, []),
    ],
)
@pytest.mark.usefixtures("everything_installed")
def test_documents_leave_all_but_cudnn(name, first):
    dtype = torch.float16 if name == V100 else torch.bfloat16
    last = LAST[:1] if name == V100 else LAST
    assert offered(on(name, dtype, mask=Mask.DOCUMENTS)) == [*first, *last]


@pytest.mark.usefixtures("everything_installed")
def test_cudnn_comes_first_of_torchs_kernels_only_where_torch_has_it_so(monkeypatch):
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91500)
    assert offered(on(H100)) == ["flash_attn_3", "flash_attn_4", "flash_attn_2", "sdpa_flash", "sdpa_cudnn", *FLASH]
    monkeypatch.setattr("torch.backends.cudnn.version", lambda: 91501)
    assert offered(on(H100)) == HOPPER + FLASH


@pytest.mark.parametrize(
    ("request_", "names"),
    [
        (on(A100, torch.float32), LAST),
        (on(A100, mask=Mask.ARBITRARY), LAST[:1]),
        (on(A100, mask=Mask.KEY_PADDING, dropout=0.1), LAST[:1]),
        (on(V100, torch.float16), LAST[:1]),
        (on(V100), []),
        (on(A100, size=264), LAST),
        (on(""), LAST[1:]),
    ],
)
@pytest.mark.usefixtures("everything_installed", "no_device")
def test_requests_beyond_flash_attention_are_left_to_the_others(request_, names):
    assert offered(request_) == names


@pytest.mark.parametrize("name", [A100, H100, B200, V100, ""])
@pytest.mark.parametrize("mask", Mask)
def test_every_kernel_answers_every_request(name, mask):
    """A kernel that does not fit is in the table with its reason, never left out."""
    answers = attention.answers(on(name, mask=mask))
    assert sorted(answer.name for answer in answers) == sorted({*HOPPER, *FLASH})
    assert all(answer.reason for answer in answers if isinstance(answer, Decline))
    assert {answer.kind for answer in answers} == {"flash", "triangle"}


@pytest.mark.full  # on a commit test_plugin.py asks every hook
def test_asking_imports_no_library():
    program = f"""
import sys
from dataclasses import replace
from pretrain.conformance import examples
from pretrain_cuda import attention
attention.answers(replace(examples.attention(), device_name="{H100}"))
print(sorted({{"triton", "flash_attn", "flash_attn_interface"}} & set(sys.modules)))
"""
    answer = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert answer.stdout.strip() == "[]"
