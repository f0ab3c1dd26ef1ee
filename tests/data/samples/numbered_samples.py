"""Distinguishable samples; in their own module, so that worker processes can import it."""

import os
import time

import torch

SEQ_LENGTH = 4


class NumberedSamples:
    """Sample n is full of n; one may be broken, and all may take time."""

    def __init__(self, length, *, masked=False, broken=None, seconds=0.0):
        self.length = length
        self.masked = masked
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
        if self.masked:
            sample["attention_mask"] = torch.ones(1, SEQ_LENGTH, SEQ_LENGTH).triu(1).bool()
        return sample


PREPARED = "PREPARED_FOR_SAMPLES"


def prepare():
    os.environ[PREPARED] = "yes"


class PreparedSamples(NumberedSamples):
    """Samples that only a process which has called `prepare` can receive."""

    def __setstate__(self, state):
        vars(self).update(state)
        assert os.environ[PREPARED] == "yes"


def numbers(batch):
    return batch["tokens"][:, 0].tolist()
