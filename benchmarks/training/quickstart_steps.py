"""Steps of the quickstart, alone in this process: what benchmarks of a step's small costs have in common."""

from __future__ import annotations

import argparse
import json
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import torch

from benchmarks import machine
from benchmarks.timing import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECIPE = machine.ROOT / "recipes" / "quickstart.yml"
REPEATS = 2000


def run(name: str, description: str, measure: Callable[[int], dict[str, object]], rounds: int = 40) -> None:
    """Measure with the command line's number of rounds, print, and with --keep write the result."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--keep", action="store_true", help=f"write results/{name}.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = {**machine.describe(threads=1), "recipe": RECIPE.name} | measure(arguments.rounds)
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep(name, result)


@contextmanager
def quickstart_engine(*overrides: str) -> Iterator:
    """Build the quickstart's engine alone in this process, with "section.key=value" in place of the recipe's."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load
    from pretrain.recipe import load_recipe

    plugins = load("cpu")
    megatron.install(plugins.backend)
    from pretrain.engine import groups
    from pretrain.engine.build import build_engine

    recipe = load_recipe(RECIPE, overrides)
    with groups.joined(plugins.backend, 0, 1, timeout_minutes=10):
        engine, _ = build_engine(recipe, plugins, recipe.tokenizer.vocab_size, plugins.backend.device(0), notify=print)
        with closing(engine):
            yield engine


def each(do: Callable[[], object], repeats: int = REPEATS) -> float:
    """Return the least seconds of a call over several rounds of many."""

    def many():
        for _ in range(repeats):
            do()

    return min(timed(many) for _ in range(5)) / repeats


def micro_batches(recipe) -> list[dict[str, torch.Tensor | None]]:
    """Return the micro-batches of a step, of random tokens."""
    generator = torch.Generator().manual_seed(0)
    size, length = recipe.train.micro_batch_size, recipe.model.seq_length
    batches = []
    for _ in range(recipe.train.global_batch_size // size):
        tokens = torch.randint(0, 8192, (size, length + 1), generator=generator)
        batches.append(
            {
                "num_tokens": torch.tensor(float(size * length)),
                "tokens": tokens[:, :-1].contiguous(),
                "labels": tokens[:, 1:].contiguous(),
                "loss_mask": torch.ones(size, length),
                "position_ids": torch.arange(length).expand(size, -1),
            }
        )
    return batches
