"""Distinguishable samples; in their own module, so that worker processes can import it."""

import sys
import time

import torch

SEQ_LENGTH = 4


class NumberedSamples:
    """Sample n is full of n; one may be broken, and all may take time."""

    def __init__(self, length, *, broken=None, seconds=0.0):
        self.length = length
        self.broken = broken
        self.seconds = seconds

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        assert 0 <= index < self.length
        if index == self.broken:
            raise ValueError(f"sample {index} is broken")
        time.sleep(self.seconds)
        tokens = torch.full((SEQ_LENGTH,), index)
        sample = {"tokens": tokens, "labels": tokens + 1, "dataset_id": 0}
        sample |= {"loss_mask": torch.ones(SEQ_LENGTH), "position_ids": torch.arange(SEQ_LENGTH)}
        return sample


class MegatronsSamples(NumberedSamples):
    """Samples that need megatron-core, as datasets do: 1 where the compiler was imported with it, else 0."""

    def __setstate__(self, state):
        import megatron.core  # noqa: F401

        vars(self).update(state)

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        sample["tokens"] = torch.full((SEQ_LENGTH,), int("torch._inductor.compile_fx" in sys.modules))
        return sample


def numbers(batch):
    return batch["tokens"][:, 0].tolist()


def begin_slowly(started):
    """Prepare a worker until a file `.on` is beside `started`, which says that it has begun."""
    started.touch()
    while not started.with_suffix(".on").exists():
        time.sleep(0.01)
