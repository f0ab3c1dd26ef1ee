"""One measurement of data_index, printed as JSON.

python -m benchmarks.data.data_index_process SYSTEM PREFIX SAMPLES CACHE
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.data.data_index import SEQ_LENGTH, clocked, recipe_for
from pretrain.bridge import megatron
from pretrain.cpu.backend import CpuBackend

megatron.install(CpuBackend())

from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder  # noqa: E402
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: E402

from pretrain.data.needed import SampleCounts  # noqa: E402
from pretrain.data.samples.datasets import _TokenizerFacts, build_datasets  # noqa: E402
from pretrain.data.tokenizers import load_tokenizer  # noqa: E402
from pretrain.recipe import make_recipe  # noqa: E402


def main() -> None:
    system, prefix, samples, cache = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
    if system == "megatron-core":
        config = GPTDatasetConfig(
            random_seed=1,
            sequence_length=SEQ_LENGTH,
            blend=([prefix], None),
            split="1,0,0",
            path_to_cache=cache,
            tokenizer=_TokenizerFacts(257, 256, {}),
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            create_attention_mask=False,
        )
        config.split_matrix[1] = config.split_matrix[2] = None
        builder = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config)
        print(json.dumps(clocked(lambda: builder.build()[0])))
        return
    index = system.removeprefix("index: ")
    data = {"cache_path": cache} if index == "megatron" else {}
    recipe = make_recipe(recipe_for(Path(prefix), index, SEQ_LENGTH, 1, samples, **data))
    tokenizer = load_tokenizer(recipe.tokenizer)
    print(json.dumps(clocked(lambda: build_datasets(recipe, tokenizer, SampleCounts(train=samples)).train)))


if __name__ == "__main__":
    main()
