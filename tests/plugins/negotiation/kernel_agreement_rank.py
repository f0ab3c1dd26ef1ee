"""One rank of test_agreement: compares one table after another, prints the result of each as a JSON line."""

from __future__ import annotations

import json
import sys

import torch.distributed as dist

from pretrain.collectives import quiet_gloo
from pretrain.errors import KernelError
from pretrain.plugins.negotiation.kernel_table import KernelRow, KernelTable, check_same_on_all_ranks


def table(kernels: dict[str, str]) -> KernelTable:
    rows = tuple(
        KernelRow(operation=operation, kernel=kernel, kind="", provider="fake 1", request={}, rejected=())
        for operation, kernel in kernels.items()
    )
    return KernelTable(backend="fake", provider="fake 1", rows=rows)


def main(store: str, rank: str, *rounds: str) -> None:
    with quiet_gloo():
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    for kernels in rounds:
        try:
            check_same_on_all_ranks(table(json.loads(kernels)))
            print(json.dumps("agreed"))
        except KernelError as error:
            print(json.dumps(str(error)))
    dist.destroy_process_group()


main(*sys.argv[1:])
