"""The process groups of a job of which this process is one rank: collectives answer at once, and move nothing."""

from __future__ import annotations

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


def join(rank: int, size: int) -> None:
    """Make the world; groups made after it are as fake, those of gloo too."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    new_group = dist.new_group

    def fake_group(ranks=None, *_args, group_desc=None, **_kwargs):
        return new_group(ranks, backend="fake", group_desc=group_desc)

    def same_on_all_ranks(objects, mine, group=None):
        objects[:] = [mine] * len(objects)

    dist.new_group = fake_group
    dist.all_gather_object = same_on_all_ranks
