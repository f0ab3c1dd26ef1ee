"""Faults for the gate's own tests: it must detect each one in a rank."""

from __future__ import annotations

import torch
import torch.distributed as dist


def apply(name: str | None) -> None:
    """Put one fault into this process."""
    if name is not None:
        MUTANTS[name]()


class _Altered:
    """A Triton kernel whose launches are altered."""

    def __init__(self, kernel, alter):
        self.kernel, self.alter = kernel, alter

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            new_grid, new_args, new_kwargs = self.alter(grid, args, kwargs)
            return self.kernel[new_grid](*new_args, **new_kwargs)

        return launch


def _launch(alter) -> None:
    from pretrain_cuda.kernels.triton import bias_dropout_add as module

    module._forward = _Altered(module._forward, alter)


def _call(before) -> None:
    from pretrain_cuda.kernels.triton.bias_dropout_add import BiasDropoutAdd

    call = BiasDropoutAdd.__call__

    def altered(self, x, *args, **kwargs):
        before(x)
        return call(self, x, *args, **kwargs)

    BiasDropoutAdd.__call__ = altered


def _without(kwargs, name):
    return {key: value for key, value in kwargs.items() if key != name}


def _all_reduce(x) -> None:
    from megatron.core import parallel_state

    dist.all_reduce(x.detach().clone(), group=parallel_state.get_tensor_model_parallel_group())


def _write_by_mask(x) -> None:
    x = x.detach().clone()
    x[x > 0] = x.new_ones(7)


def _hoard(x, kept=[]) -> None:  # noqa: B006
    kept.append(x.detach().repeat(64, *[1] * (x.dim() - 1)))


MUTANTS = {
    "missing argument": lambda: _launch(lambda grid, args, kwargs: (grid, args, _without(kwargs, "tile_columns"))),
    "unknown argument": lambda: _launch(lambda grid, args, kwargs: (grid, args, kwargs | {"tiles": 1})),
    "list for a number": lambda: _launch(lambda grid, args, kwargs: (grid, (*args[:5], [1, 2], *args[6:]), kwargs)),
    "grid of 70000 in y": lambda: _launch(lambda grid, args, kwargs: ((grid[0], 70000), args, kwargs)),
    "empty grid": lambda: _launch(lambda grid, args, kwargs: ((0, *grid[1:]), args, kwargs)),
    "tensor on the host": lambda: _launch(
        lambda grid, args, kwargs: (grid, (*args[:4], torch.zeros(1, dtype=torch.int64), *args[5:]), kwargs)
    ),
    "tensors on two devices": lambda: _call(lambda x: x + torch.zeros(x.shape[-1])),
    "fp16 for a seed": lambda: _launch(lambda grid, args, kwargs: (grid, (*args[:4], args[0], *args[5:]), kwargs)),
    "item": lambda: _call(lambda x: x.sum().item()),
    "bool": lambda: _call(lambda x: bool((x > 0).any())),
    "cpu": lambda: _call(lambda x: x.cpu()),
    "from the host": lambda: _call(lambda x: torch.tensor(1.0, device=x.device)),
    "nonzero": lambda: _call(lambda x: x[x > 0]),
    "write by a mask": lambda: _call(_write_by_mask),
    "synchronize": lambda: _call(lambda _x: torch.cuda.synchronize()),
    "stream": lambda: _call(lambda _x: torch.cuda.current_stream().synchronize()),
    "event": lambda: _call(lambda _x: torch.cuda.Event().synchronize()),
    "all-reduce": lambda: _call(_all_reduce),
    "all-reduce on the host": lambda: _call(lambda x: dist.all_reduce(torch.zeros(x.shape[0]))),
    "storage that is kept": lambda: _call(_hoard),
}
