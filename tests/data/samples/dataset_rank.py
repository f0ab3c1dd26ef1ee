"""One of two ranks that build datasets together: STORE PREFIX RANK."""

import json
import pickle
import sys

from torch import distributed


def main(store, prefix, rank):
    from pretrain.bridge import megatron
    from pretrain.collectives import quiet_gloo
    from pretrain.cpu.backend import CpuBackend

    megatron.install(CpuBackend())
    with quiet_gloo():
        distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    blend = [{"weight": weight, "path": prefix} for weight in (1, 2)]
    common = [{"path": prefix, "split": "90,8,2"}, {"blend": blend, "split": "90,8,2"}]
    own = {"train_data_path": blend, "valid_data_path": prefix, "test_data_path": blend}
    print(json.dumps([build(data, rank) for data in (*common, own)]))
    distributed.destroy_process_group()


def build(data, rank):
    """Return the lengths and the first samples of the datasets."""
    from pretrain.data.needed import SampleCounts
    from pretrain.data.samples.datasets import build_datasets
    from pretrain.data.tokenizers import load_tokenizer
    from pretrain.recipe import make_recipe
    from recipe.smallest import SMALLEST

    recipe = make_recipe(SMALLEST | {"data": data})
    tokenizer = load_tokenizer(recipe.tokenizer)
    datasets = build_datasets(recipe, tokenizer, SampleCounts(train=200, valid=20, test=20))
    tokens = [datasets.train[index]["tokens"].tolist() for index in range(10)]
    sent = pickle.dumps(datasets.train)
    assert len(sent) < 10_000
    assert [pickle.loads(sent)[index]["tokens"].tolist() for index in range(10)] == tokens
    small = build_datasets(recipe, tokenizer, SampleCounts(train=100), on_this_rank=rank == 0)
    assert (small.train is None) == (rank != 0)
    return [len(datasets.train), len(datasets.valid), len(datasets.test), tokens]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
