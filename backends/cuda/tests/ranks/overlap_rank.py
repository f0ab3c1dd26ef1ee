"""One of two ranks of test_overlap: `python -m ranks.overlap_rank STORE RANK` prints, as JSON, what each way did.

A way is a linear with its communication: what happened in the backward pass, in order, and what differs from float64.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.plugins.requests import LinearRequest
from pretrain.reference.linear import Linear
from pretrain_cuda import linear

ROWS, OUT, IN = (4, 3), 10, 6


class WatchedGroup(dist.ProcessGroup):
    """Records when a collective of another group is started and when it is waited for."""

    def __init__(self, inner, events):
        super().__init__(inner.rank(), inner.size())
        self._inner, self._events = inner, events

    def __getattribute__(self, name):
        plain = name.strip("_")
        if not plain.startswith(("all", "reduce")):
            return super().__getattribute__(name)
        collective, events = getattr(self._inner, name), self._events
        kind = "all_reduce" if plain.startswith("allreduce") else "gather" if plain.startswith("all") else "scatter"

        def call(*args, **kwargs):
            events.append(f"{kind} starts")
            return WatchedWork(collective(*args, **kwargs), lambda: events.append(f"{kind} is waited for"))

        return call


class WatchedWork(dist.Work):
    def __init__(self, work, waited):
        super().__init__()
        self._work, self._waited = work, waited

    def wait(self, timeout=None):
        self._waited()
        return self._work.wait()


class Products(TorchDispatchMode):
    """Records the matmuls whose result has the shape of a gradient."""

    def __init__(self, events):
        super().__init__()
        self._events = events

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if "mm" in function.__name__:
            shape = tuple(result.shape)
            kind = "weight" if shape == (OUT, IN) else "input" if shape[-1] == IN else "other"
            self._events.append(f"{kind} gradient")
        return result


def apex(request):
    """apex's matmul, by its signature in csrc/megatron: (input [rows, in], gradient [rows, out], main gradient)."""

    def accumulate(x, grad, main_grad):
        main_grad += grad.t() @ x

    module = ModuleType(linear.EXTENSION)
    module.wgrad_gemm_accum_fp32, module.__spec__ = accumulate, sys.__spec__  # without a spec it would not be found
    sys.modules[linear.EXTENSION] = module
    return linear.answers(request)[-1].build({})


def run(rank, *, is_split, main, is_apexs):
    """Return the events of the backward pass and the largest difference of each gradient from float64."""
    events = []
    request = LinearRequest(
        device_type="cpu",
        dtype=torch.float32,
        tensor_parallel_size=2,
        sequence_parallel=is_split,
        main_grad_dtype=torch.float32 if main else None,
    )
    kernel = apex(request) if is_apexs else Linear(request)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(*ROWS, IN, generator=generator)
    weights, grads = torch.randn(2, OUT, IN, generator=generator), torch.randn(2, *ROWS, OUT, generator=generator)
    mine = slice(2 * rank, 2 * rank + 2) if is_split else slice(None)
    given, weight = x[mine].clone().requires_grad_(), torch.nn.Parameter(weights[rank].clone())
    if main:
        weight.main_grad, weight.grad_added_to_main_grad = torch.zeros(OUT, IN), False
    output = kernel(given, weight, None, WatchedGroup(dist.group.WORLD, events))
    events.clear()
    with Products(events):
        output.backward(grads[rank])
    expected_x = torch.einsum("rsbo,roi->sbi", grads.double(), weights.double())[mine]
    expected_weight = torch.einsum("sbo,sbi->oi", grads[rank].double(), x.double())
    found = weight.main_grad if main else weight.grad
    errors = [(given.grad - expected_x).abs().max().item(), (found - expected_weight).abs().max().item()]
    return {"events": events, "errors": errors}


def main(store, rank):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    ways = {
        "returned": {"main": False, "is_apexs": False},
        "added": {"main": True, "is_apexs": False},
        "apex": {"main": True, "is_apexs": True},
    }
    found = {
        f"{name} {way}": run(int(rank), is_split=way == "split", **settings)
        for name, settings in ways.items()
        for way in ("whole", "split")
    }
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
