"""Each CUDA spelling of megatron-core becomes the device's; everything else is left as it was written."""

from __future__ import annotations

import ast
import traceback
from types import SimpleNamespace

import pytest

from pretrain.bridge.megatron.source_translation import DEVICE, translate


def expression(source):
    """Translate one expression and write it out again."""
    return ast.unparse(translate(source, "made_up.py")).replace(DEVICE, "DEVICE")


def run(source, **names):
    """Run a translated module; return its globals."""
    names[DEVICE] = SimpleNamespace(type="npu", synchronize=lambda: "synchronized")
    exec(compile(translate(source, "made_up.py"), "made_up.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    ("written", "runs"),
    [
        ("torch.cuda.synchronize()", "DEVICE.synchronize()"),
        ("torch.cuda.nvtx.range_push('x')", "DEVICE.nvtx.range_push('x')"),
        ("from torch.cuda import _lazy_call", "_lazy_call = DEVICE._lazy_call"),
        ("from torch.cuda import device as device_ctx", "device_ctx = DEVICE.device"),
        ("from torch.cuda import Stream, Event as E", "Stream = DEVICE.Stream\nE = DEVICE.Event"),
        ("torch.zeros(1, device='cuda')", "torch.zeros(1, device=DEVICE.type)"),
        ("'cuda:' + str(index)", "DEVICE.type + ':' + str(index)"),
        ("f'cuda:{index}'", "f'{DEVICE.type}:{index}'"),
        ("f'on cuda:{torch.cuda.current_device()}'", "f'on cuda:{DEVICE.current_device()}'"),
        ("f'{x:{width}}'", "f'{x:{width}}'"),
        ("f'{x!r}'", "f'{x!r}'"),
        ("p.type() == 'torch.cuda.HalfTensor'", "p.type() == DEVICE.type_name('HalfTensor')"),
        ("model.cuda()", "DEVICE.move(model)"),
        ("x.float().cuda(index, non_blocking=True)", "DEVICE.move(x.float(), index, non_blocking=True)"),
        ("x.is_cuda and y.grad.is_cuda", "DEVICE.holds(x) and DEVICE.holds(y.grad)"),
        ("torch.compile(f)", "DEVICE.compile(f)"),
        ("other.compile(f)", "other.compile(f)"),
        ("config.cuda_graph_impl == 'cuda_graph'", "config.cuda_graph_impl == 'cuda_graph'"),
        ("x.is_cuda = False", "x.is_cuda = False"),
    ],
)
def test_each_cuda_name_is_redirected(written, runs):
    assert expression(written) == runs


def test_nested_names_are_all_redirected():
    assert expression("x.cuda(torch.cuda.current_device()).is_cuda") == (
        "DEVICE.holds(DEVICE.move(x, DEVICE.current_device()))"
    )


def test_a_match_on_the_device_still_matches():
    source = "match kind:\n    case 'cuda': found = True\n    case _: found = False"
    assert run(source, kind="npu")["found"]
    assert not run(source, kind="cuda")["found"]


def test_a_decorator_is_redirected():
    assert expression("@torch.compile\ndef f():\n    pass").startswith("@DEVICE.compile")


def test_documentation_is_left_alone():
    source = '"""Runs on torch.cuda."""\n\ndef f():\n    """Calls torch.cuda.synchronize."""\n'
    done = run(source)
    assert done["__doc__"] == "Runs on torch.cuda."
    assert done["f"].__doc__ == "Calls torch.cuda.synchronize."


def test_future_imports_stay_first():
    assert run('"""Doc."""\nfrom __future__ import annotations\nfrom torch.cuda import synchronize\n')["synchronize"]


def test_tracebacks_show_the_lines_of_the_file():
    source = (
        "import torch\n\ndef fails(x):\n    torch.cuda.synchronize()\n    where = f'cuda:{x}'\n    return where / x\n"
    )
    try:
        run(source)["fails"](1)
    except TypeError as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
    assert (frame.filename, frame.lineno) == ("made_up.py", 6)


def test_a_syntax_error_names_the_file():
    with pytest.raises(SyntaxError, match=r"made_up\.py"):
        translate("def", "made_up.py")
