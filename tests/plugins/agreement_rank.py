"""One rank of test_agreement: makes a table, compares it, prints what came of it."""

from __future__ import annotations

import sys

import torch.distributed as dist

from pretrain.errors import KernelError
from pretrain.plugins.agreement import check_same_on_all_ranks
from pretrain.plugins.table import KernelTable, Row


def main(store: str, rank: str, norm: str, version: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    names = {"softmax": "fused", "norm": norm}
    rows = tuple(
        Row(operation=operation, kernel=name, kind="", provider=f"fake {version}", request={}, passed_over=())
        for operation, name in names.items()
    )
    try:
        check_same_on_all_ranks(KernelTable(backend="fake", provider="fake 1", rows=rows))
        print("agreed")
    except KernelError as error:
        print(error)
    dist.destroy_process_group()


main(*sys.argv[1:])
