"""flash-attn 2, 3 and 4. None of them was run here: functions with their signatures stand in, computed with torch."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from kit import fake_flash_attn
from pretrain.conformance import examples
from pretrain.conformance.comparison import assert_agrees, oracle, random, strided
from pretrain.conformance.example_calls import example_documents
from pretrain.conformance.suite import TestAttention, pytest_generate_tests, subject  # noqa: F401
from pretrain.plugins.offer import Decline, Offer
from pretrain.plugins.requests import Mask
from pretrain.plugins.signatures import Documents
from pretrain_cuda.devices import Architecture
from pretrain_cuda.kernels.flash_attn import FLASH_2, FLASH_3, FLASH_4

BACKEND = "kit.attentions:flash_attn"

A100, H100, B200, V100 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA B200", "Tesla V100-SXM2-16GB"
LIBRARIES = {"2": FLASH_2, "3": FLASH_3, "4": FLASH_4}
FILES = {
    "flash_attn/flash_attn_interface.py": "from kit.fake_flash_attn import flash_attn_func, flash_attn_varlen_func",
    "flash_attn_2_cuda.py": "",
    "flash_attn_interface.py": """from kit.fake_flash_attn import flash_attn_3_func as flash_attn_func
from kit.fake_flash_attn import flash_attn_3_varlen_func as flash_attn_varlen_func""",
    "flash_attn_3/_C.py": "",
    "flash_attn/cute/interface.py": """from kit.fake_flash_attn import flash_attn_4_func as flash_attn_func
from kit.fake_flash_attn import flash_attn_4_varlen_func as flash_attn_varlen_func""",
    "cutlass/__init__.py": "",
    "flash_attn-2.8.4.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.4\n",
    "flash_attn_3-3.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash_attn_3\nVersion: 3.0.0\n",
    "flash_attn_4-4.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn-4\nVersion: 4.0\n",
}
"""Modules that pip and setup.py install of each, as far as answers look them up; flash_attn is in two distributions."""


def on(name, dtype=torch.bfloat16, **asked):
    return replace(examples.attention(dtype, **asked), device_type="cuda", device_name=name)


def inputs(length=33, groups=4, size=16, batch=2):
    numbers = {"query": 4, "key": groups, "value": groups}
    return {
        name: random(length, batch, number, size, dtype=torch.bfloat16, seed=seed)
        for seed, (name, number) in enumerate(numbers.items())
    }


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put files of the libraries onto the path; unload their modules afterwards."""
    monkeypatch.syspath_prepend(tmp_path)

    def put(*paths):
        for path in paths:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(FILES[path])

    yield put
    for name in [name for name in sys.modules if name.split(".")[0].startswith(("flash_attn", "cutlass"))]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("library", "device_name", "provider"),
    [("2", A100, "flash-attn 2.8.4"), ("3", H100, "flash-attn-3 3.0.0"), ("4", B200, "flash-attn-4 4.0")],
)
@pytest.mark.parametrize("mask", [Mask.NONE, Mask.CAUSAL])
def test_installed_libraries_are_called_as_their_sources_say(install, library, device_name, provider, mask):
    install(*FILES)
    request = on(device_name, mask=mask, groups=2, deterministic=True)
    offer = LIBRARIES[library].answer(request)
    assert isinstance(offer, Offer)
    assert (offer.kind, offer.provider) == ("flash", provider)
    fake_flash_attn.CALLS.clear()
    assert_agrees(offer.build({}), oracle(request), inputs(groups=2), torch.device("cpu"))
    (call,) = fake_flash_attn.CALLS
    assert call.pop("dropout_p", 0.0) == 0.0
    row, keys = 2 * 4 * 16, 2 * 2 * 16
    assert call == {
        "q": ((2, 33, 4, 16), (4 * 16, row, 16, 1)),  # [b, s, n, d], as it lies in [s, b, n, d]
        "k": ((2, 33, 2, 16), (2 * 16, keys, 16, 1)),
        "v": ((2, 33, 2, 16), (2 * 16, keys, 16, 1)),
        "softmax_scale": 16**-0.5,
        "causal": mask is Mask.CAUSAL,
        "deterministic": True,
    }


@pytest.mark.parametrize(("library", "device_name"), [("2", A100), ("3", H100), ("4", B200)])
def test_heads_whose_entries_do_not_follow_each_other_are_copied_first(install, library, device_name):
    install(*FILES)
    request = on(device_name)
    kernel, given = LIBRARIES[library].answer(request).build({}), inputs()
    assert strided(given["value"]).stride(-1) != 1
    assert_agrees(kernel, oracle(request), given, torch.device("cpu"), is_strided=True)


def test_a_result_laid_out_as_the_query_is_not_copied(install):
    """flash-attn 2 allocates it so: [s, b, n * d] is then a view of it."""
    install(*FILES)
    results = []

    def record(q, k, v, **settings):
        results.append(torch.empty_like(q).copy_(q))
        return results[-1]

    kernel = FLASH_2.answer(on(A100)).build({})
    kernel.function = record
    context = kernel(**inputs())
    assert context.is_contiguous()
    assert context.data_ptr() == results[0].data_ptr()


@pytest.mark.parametrize(("library", "device_name"), [("2", A100), ("3", H100), ("4", B200)])
def test_a_piece_of_a_sequence_sees_all_keys_up_to_its_own(install, library, device_name):
    """Fewer queries than keys: aligned at the last key, as the contract says."""
    install(*FILES)
    request = on(device_name, length=5, keys=33)
    given = inputs()
    given["query"] = given["query"][:5]
    assert_agrees(LIBRARIES[library].answer(request).build({}), oracle(request), given, torch.device("cpu"))


THREE = Documents.of(torch.tensor([[0, 0, 20, 33, 33], [0, 7, 27, 40, 40]], dtype=torch.int32))
"""Of one sample: a document whose queries are elsewhere, two that are whole, and an empty one."""


@pytest.mark.parametrize(("library", "device_name"), [("2", A100), ("3", H100)])
def test_documents_are_sequences_of_different_lengths(install, library, device_name):
    """One call for all of them, of views; a window reaches back within one document."""
    install(*FILES)
    request = on(device_name, mask=Mask.DOCUMENTS, groups=2, batch=1, keys=40, window=9, deterministic=True)
    fake_flash_attn.CALLS.clear()
    given = inputs(40, groups=2, batch=1)
    given["query"] = given["query"][:33]
    kernel = LIBRARIES[library].answer(request).build({})
    assert_agrees(kernel, oracle(request), given, torch.device("cpu"), constants={"mask": THREE})
    (call,) = fake_flash_attn.CALLS
    assert call.pop("dropout_p", 0.0) == 0.0
    assert call == {
        "q": ((33, 4, 16), (4 * 16, 16, 1)),
        "k": ((40, 2, 16), (2 * 16, 16, 1)),
        "v": ((40, 2, 16), (2 * 16, 16, 1)),
        "queries": [0, 0, 20, 33, 33],
        "keys": [0, 7, 27, 40, 40],
        "longest": (20, 20),
        "softmax_scale": 16**-0.5,
        "causal": True,
        "window_size": (8, 0),
        "deterministic": True,
    }


@pytest.mark.parametrize(("library", "device_name"), [("2", A100), ("3", H100), ("4", B200)])
def test_documents_of_several_samples_are_one_call(install, library, device_name):
    install(*FILES)
    request = on(device_name, mask=Mask.DOCUMENTS, groups=2)
    fake_flash_attn.CALLS.clear()
    kernel = LIBRARIES[library].answer(request).build({})
    constants = {"mask": example_documents(2, 33, 33)}
    assert_agrees(kernel, oracle(request), inputs(groups=2), torch.device("cpu"), constants=constants, floor=1.0)
    (call,) = fake_flash_attn.CALLS
    assert (call["q"][0], call["k"][0], call["causal"]) == ((66, 4, 16), (66, 2, 16), True)


def test_a_piece_of_one_token_is_not_decoded(install):
    """Another document of it has keys alone: the decoding of flash-attn 2 takes one query of every document."""
    install(*FILES)
    request = on(A100, mask=Mask.DOCUMENTS, groups=2, length=1, keys=9, batch=1)
    mask = Documents.of(torch.tensor([[0, 0, 1], [0, 4, 9]], dtype=torch.int32))
    given = inputs(9, groups=2, batch=1)
    given["query"] = given["query"][:1]
    kernel = FLASH_2.answer(request).build({})
    assert_agrees(kernel, oracle(request), given, torch.device("cpu"), constants={"mask": mask}, floor=1.0)


def test_documents_are_not_left_out(install):
    install(*FILES)
    kernel = FLASH_2.answer(on(A100, mask=Mask.DOCUMENTS)).build({})
    with pytest.raises(ValueError, match="'documents' was called with NoneType; needs Documents"):
        kernel(**inputs())


def test_dropout_is_passed_on_in_training_only(install):
    install(*FILES)
    kernel = FLASH_2.answer(on(A100, dropout=0.1)).build({})
    fake_flash_attn.CALLS.clear()
    kernel(**inputs())
    kernel(**inputs(), training=False)
    assert [call["dropout_p"] for call in fake_flash_attn.CALLS] == [0.1, 0.0]


def test_a_mask_tensor_is_refused(install):
    install(*FILES)
    kernel = FLASH_2.answer(on(A100)).build({})
    with pytest.raises(ValueError, match="built for the mask 'causal' was called with a mask tensor"):
        kernel(**inputs(), mask=torch.zeros(2, 1, 1, 33, dtype=torch.bool))


@pytest.mark.parametrize(
    ("library", "asked", "reason"),
    [
        ("2", on(A100, mask=Mask.ARBITRARY), "mask arbitrary; only none, causal and documents"),
        ("2", on(A100, mask=Mask.KEY_PADDING), "mask key_padding; only none, causal and documents"),
        ("2", on(A100, torch.float32), "dtype torch.float32; only fp16 and bf16"),
        ("2", on(V100, torch.float16), "compute capability 7.0; only 8.0 and later"),
        ("2", on(A100, size=264), "head size 264; at most 256"),
        ("2", on("NVIDIA P100"), "the compute capability of 'NVIDIA P100' is not known"),
        ("2", on(""), "there is no device here, and none was named"),
        ("2", on(A100, dropout=0.1, size=20), ""),
        ("3", on(A100), "compute capability 8.0; only 9.0"),
        ("3", on(B200), "compute capability 10.0; only 9.0"),
        ("3", on(H100, dropout=0.1), "dropout 0.1; it has none"),
        ("3", on(H100, size=20), "head size 20; only multiples of 8"),
        ("3", on(H100, size=264), "head size 264; at most 256"),
        (
            "3",
            on(H100, size=200, deterministic=True),
            "head size 200 and deterministic; its deterministic backward pass takes at most 192",
        ),
        ("3", on(H100, size=192, deterministic=True), ""),
        ("4", on(A100), "compute capability 8.0; only 9.0 and 10.x"),
        ("4", on(H100, dropout=0.1), "dropout 0.1; it has none"),
        ("4", on(H100, size=192), ""),
        ("4", on(B200, size=192), "head size 192 on compute capability 10.0; only up to 128, and 256"),
        ("4", on(B200, size=256), ""),
        ("4", on(B200, size=20), "head size 20; only multiples of 8"),
        ("4", on(B200, mask=Mask.DOCUMENTS, size=256), "head size 256 with documents; its tests have at most 128"),
        (
            "4",
            on(B200, mask=Mask.DOCUMENTS, keys=64),
            "64 keys for 33 queries with documents; its tests have only as many",
        ),
    ],
)
@pytest.mark.usefixtures("no_device")
def test_a_decline_names_the_unsupported_value(install, library, asked, reason):
    install(*FILES)
    declined = LIBRARIES[library].answer(asked)
    assert getattr(declined, "reason", "") == reason
    assert declined.kind == "flash"


@pytest.mark.parametrize(
    ("size", "dropout", "capability", "declines"),
    [
        (192, 0.1, (8, 9), 0),
        (256, 0.0, (12, 0), 0),
        (200, 0.1, (8, 6), 1),
        (256, 0.1, (8, 0), 0),
        (256, 0.1, (12, 0), 1),
    ],
)
def test_large_heads_with_dropout_have_no_backward_kernel_on_small_cards(
    install, monkeypatch, size, dropout, capability, declines
):
    """It would launch nothing there, and leave the gradients as they were allocated."""
    install(*FILES)
    monkeypatch.setattr("pretrain_cuda.kernels.flash_limits.architecture_of", lambda _: Architecture(*capability))
    answer = FLASH_2.answer(on("some", size=size, dropout=dropout))
    assert isinstance(answer, Decline) is bool(declines)
    if declines:
        assert "for which it has no backward kernel; at most 192, or no dropout" in answer.reason


@pytest.mark.parametrize(
    ("library", "device_name", "there", "reason"),
    [
        ("2", A100, [], "flash_attn.flash_attn_interface is not installed: pip install flash-attn"),
        ("2", A100, ["flash_attn/cute/interface.py"], "flash_attn.flash_attn_interface is not installed"),
        ("2", A100, ["flash_attn/flash_attn_interface.py"], "flash_attn_2_cuda is not installed"),
        ("3", H100, [], "flash_attn_interface is not installed: python setup.py install in the folder hopper"),
        ("3", H100, ["flash_attn_interface.py"], "flash_attn_3._C is not installed"),
        ("4", B200, ["flash_attn/flash_attn_interface.py"], "flash_attn.cute.interface is not installed: pip install"),
        ("4", B200, ["flash_attn/cute/interface.py"], "cutlass is not installed: pip install flash-attn-4"),
    ],
)
def test_the_very_module_is_looked_for(install, library, device_name, there, reason):
    """One generation does not stand for another, though two share a folder."""
    install(*there)
    declined = LIBRARIES[library].answer(on(device_name))
    assert isinstance(declined, Decline)
    assert declined.reason.startswith(reason)
    assert not any(name.startswith("flash_attn") for name in sys.modules)
