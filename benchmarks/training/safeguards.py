"""Cost of the safeguards in a step of the quickstart: losses that are watched, the slowest rank, equal replicas.

    python -m benchmarks.training.safeguards [--rounds 40] [--keep]

One rank on the CPU, with one thread. `seconds_of_calls` are measured alone, many times: what each safeguard does on
this rank, in a step or where a line is logged. `share_of_a_step` divides what comes to one step by the step's median,
with the quickstart's `logging.log_interval`, and replicas that are compared every 100 iterations: it is arithmetic.
`seconds_of_a_step` are measured, steps with watched losses and measured attention in turn with steps that have neither
(the clock's hooks are taken off); their difference is smaller than the noise. Not in either: the two all-reduces
of a few numbers between ranks, one where a line is logged and one where replicas are compared. The losses ride in the
all-reduce of the reasons to stop, which every run has.
"""

from __future__ import annotations

import argparse
import json
import statistics
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks import machine
from benchmarks.timing import spread, timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECIPE = machine.ROOT / "recipes" / "quickstart.yml"
INTERVAL = 100
"""Iterations between two comparisons of replicas."""
REPEATS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--keep", action="store_true", help="write results/safeguards.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with quickstart_engine() as engine:
        result = {**machine.describe(threads=1), "recipe": str(Path(RECIPE).name)} | measure(engine, arguments.rounds)
    print(json.dumps(result, indent=1))
    if arguments.keep:
        machine.keep("safeguards", result)


@contextmanager
def quickstart_engine() -> Iterator:
    """Build the quickstart's engine alone in this process."""
    from pretrain.bridge import megatron
    from pretrain.plugins.host.manager import load
    from pretrain.recipe import load_recipe

    plugins = load("cpu")
    megatron.install(plugins.backend)
    from pretrain.engine import groups
    from pretrain.engine.build import build_engine

    recipe = load_recipe(RECIPE)
    with groups.joined(plugins.backend, 0, 1, timeout_minutes=10):
        engine, _ = build_engine(recipe, plugins, recipe.tokenizer.vocab_size, plugins.backend.device(0), notify=print)
        with closing(engine):
            yield engine


def measure(engine, rounds: int) -> dict[str, object]:
    """Return seconds of steps and calls, and the share of a step."""
    from pretrain.training.reporting.local_clock import LocalClock
    from pretrain.training.reporting.stragglers import OwnTimes, slowest
    from pretrain.training.safeguards.exchange import Exchange
    from pretrain.training.safeguards.host_copy import HostCopies
    from pretrain.training.safeguards.spike_watch import SpikeWatch
    from pretrain.training.safeguards.weight_hash import WeightHash

    train, device = engine.recipe.train, torch.device("cpu")
    batches = micro_batches(engine.recipe)
    clock, hashes = LocalClock(device), WeightHash()
    watch = SpikeWatch(2.0, HostCopies(device, pin_memory=False), [2.0] * 100, judges_nan=True, is_early=False)
    exchange, empty = Exchange(watch), Exchange()

    def step():
        return engine.train_step(iter(batches), len(batches))

    def guarded_step():
        clock.begin_step()
        taken = step()
        clock.end_step()
        watch.see(0, taken)
        exchange.turn()

    plain = [[], []]
    for number in range(rounds + 2):
        if number == 2:  # two are not counted
            plain = [[], []]
        plain[0].append(timed(step))
        clock.attach(engine.models)
        plain[1].append(timed(guarded_step))
        clock.detach()
    taken, module = step(), torch.nn.Identity()
    with engine.replicated_weights() as weights:
        tensors = [weight for _, weight in weights]
    ranks = [OwnTimes(attention=0.001 + rank / 1e6, data=0.0) for rank in range(1000)]

    def watch_a_loss():
        watch.see(0, taken)
        exchange.turn()

    def measure_a_call():
        clock._left = 1
        clock._begin(module, ())
        clock._end(module, (), None)

    def pass_a_call():
        clock._begin(module, ())
        clock._end(module, (), None)

    calls = {
        "a watched loss": each(watch_a_loss) - each(empty.turn),
        "a measured call of attention": each(measure_a_call),
        "a call of attention that is not measured": each(pass_a_call),
        "the slowest of 1000 ranks": each(lambda: slowest(ranks, 1.0), 50),
        "hashes of all weights": statistics.median(timed(lambda: hashes.buckets(tensors).tolist()) for _ in range(9)),
    }
    from pretrain.training.reporting.local_clock import CALLS

    layers = min(CALLS, engine.recipe.model.num_layers)
    in_a_step = {
        "losses": calls["a watched loss"],
        "stragglers": layers * calls["a measured call of attention"]
        + layers * (2 * len(batches) - 1) * calls["a call of attention that is not measured"]
        + calls["the slowest of 1000 ranks"] / engine.recipe.logging.log_interval,
        "replicas": calls["hashes of all weights"] / INTERVAL,
    }
    seconds = statistics.median(plain[0])
    return {
        "samples_of_a_step": train.global_batch_size,
        "weights_bytes": sum(weight.numel() * weight.element_size() for weight in tensors),
        "seconds_of_calls": {name: round(value, 8) for name, value in calls.items()},
        "seconds_of_a_step": {"without": spread(plain[0]), "with": spread(plain[1])},
        "share_of_a_step": {name: round(value / seconds, 6) for name, value in in_a_step.items()}
        | {"all": round(sum(in_a_step.values()) / seconds, 6)},
    }


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
                "tokens": tokens[:, :-1].contiguous(),
                "labels": tokens[:, 1:].contiguous(),
                "loss_mask": torch.ones(size, length),
                "position_ids": torch.arange(length).expand(size, -1),
                "attention_mask": None,
            }
        )
    return batches


if __name__ == "__main__":
    main()
