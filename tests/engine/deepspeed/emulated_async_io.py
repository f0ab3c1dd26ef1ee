"""Emulation of DeepSpeed's extension async_io, with plain files and a stricter contract.

The names are those of deepspeed/ops/csrc/aio/py_lib/py_ds_aio.cpp, as far as ZeRO-3 calls them. Nothing happens before
`wait`: what is used too early is not a number, what is changed too early is written as changed, and another handle sees
nothing of it. Whatever direct I/O refuses is an error: sizes and addresses that are no multiples of 512 bytes.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

SECTOR = 512
_PAGE = 4096
_locked: dict[int, torch.Tensor] = {}


class aio_handle:  # noqa: N801  its name
    def __init__(self, block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism):
        self._pending = []

    def new_cpu_locked_tensor(self, num_elem, example_tensor):
        size = num_elem * example_tensor.element_size()
        memory = torch.full((size + _PAGE,), 255, dtype=torch.uint8)  # NaN in every dtype
        buffer = memory[-memory.data_ptr() % _PAGE :][:size].view(example_tensor.dtype)
        _locked[buffer.data_ptr()] = buffer
        return buffer

    def free_cpu_locked_tensor(self, tensor):
        return _locked.pop(tensor.data_ptr(), None) is not None

    def is_pinned(self, buffer):
        start, end = buffer.data_ptr(), buffer.data_ptr() + buffer.nbytes
        return any(first <= start and end <= first + locked.nbytes for first, locked in _locked.items())

    def async_pread(self, buffer, filename, file_offset=0):
        assert Path(filename).stat().st_size >= file_offset + buffer.nbytes
        self._submit(_read, buffer, filename, file_offset)
        _bytes(buffer).fill_(255)
        return 0

    def async_pwrite(self, buffer, filename, file_offset=0):
        self._submit(_write, buffer, filename, file_offset)
        return 0

    def wait(self):
        assert self._pending
        done, self._pending = self._pending, []
        for work in done:
            work()
        return len(done)

    def _submit(self, work, buffer, filename, offset):
        assert self.is_pinned(buffer)  # ZeRO-3 gives no others, which the extension would copy
        assert buffer.nbytes % SECTOR == buffer.data_ptr() % SECTOR == offset % SECTOR == 0
        view = _bytes(buffer)  # of what it is now: ZeRO-3 lets the tensor be another's memory meanwhile
        self._pending.append(lambda: work(view, filename, offset))


def _bytes(buffer):
    return buffer.detach().view(torch.uint8)


def _read(buffer, filename, offset):
    with Path(filename).open("rb") as file:
        file.seek(offset)
        assert file.readinto(buffer.numpy()) == buffer.nbytes


def _write(buffer, filename, offset):
    file = os.open(filename, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        assert os.pwrite(file, buffer.numpy(), offset) == buffer.nbytes
    finally:
        os.close(file)
