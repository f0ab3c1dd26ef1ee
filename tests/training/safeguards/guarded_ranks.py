"""Two ranks that train with safeguards: `python -m training.safeguards.guarded_ranks FOLDER RANK CASES PORTS...`.

Each writes FOLDER/RANK.json: for each case what it saw.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import sys
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path

from engine.layouts import BF16, OVERLAP_BOTH, PP, STAGE, TP, ZERO1
from pretrain.launch.world import World, free_port
from rank_programs import run_ranks
from tools.doctor.written_tokens import write_tokens

FP16 = ("precision.dtype=fp16", "precision.initial_loss_scale=256", "precision.loss_scale_window=20")

ROLLBACKS = {"ZeRO-1 of megatron-core, overlapped": (*ZERO1, *OVERLAP_BOTH, "checkpoint.async_save=true")}
ROLLBACKS_FULL = {
    "megatron": (),
    "TP": TP,
    "PP": PP,
    "bf16": (*BF16, *ZERO1),
    "fp16": FP16,
    "workers": ("data.num_workers=1",),
    **{f"stage {stage}": STAGE[stage] for stage in range(4)},
    "not finite, megatron": (),
    **{f"not finite, stage {stage}": STAGE[stage] for stage in (0, 2, 3)},
    "stage 2, bf16": (*BF16, *STAGE[2]),
    "stage 3, fp16": (*FP16, *STAGE[3]),
}
ITERATIONS = 34
RECIPE = {
    "model": {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "hidden_dropout": 0.1},
    "tokenizer": {"type": "bytes"},
    "train": {
        "micro_batch_size": 2, "global_batch_size": 4, "train_iters": ITERATIONS,
        "loss_spike": {"threshold": 1.3, "action": "rollback", "leave_out": 3},
        "check_replicas_interval": 11,
    },
    "optimizer": {"lr": 1e-2},
    "schedule": {"lr_decay_style": "linear"},
    "checkpoint": {"save_interval": 11},
    "evaluation": {"interval": 0},
    "logging": {"log_interval": 1, "tensorboard": False},
}  # fmt: skip


def run(folder, cases):
    """Start both ranks and return what each saw of these cases."""
    write_tokens(folder / "tokens", poisoned_tokens())
    ports = [str(free_port()) for _ in range(4 * len(globals()[cases]) + 2)]
    run_ranks("training.safeguards.guarded_ranks", folder, "{rank}", cases, *ports, folder=folder, world_size=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def poisoned_tokens():
    """Return a text that is easy to learn, and within it a stretch of noise that is longer than one sample."""
    noise = random.Random(5).choices(range(128, 256), k=40)
    easy = list(b"abcdefgh") * 600
    return [*easy[:3200], *noise, *easy[3200:]]


def main():
    folder, rank, cases, *ports = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    ports = iter(ports)
    seen = {}
    for case, overrides in globals()[cases].items():
        found = rolled_back_and_by_hand(folder, rank, case, overrides, ports)
        seen[case] = found | {"skip": with_updates_left_out(folder, rank, case, overrides, ports)}
    if cases == "ROLLBACKS":
        seen["named"] = with_gradients_of_rank_1_broken(folder, rank, ports)
        seen["flipped"] = with_a_flipped_bit(folder, rank, ports)  # last: an error leaves the world as it is
    (folder / f"{rank}.json").write_text(json.dumps(seen))


def train(folder, name, rank, ports, *overrides, resume=False):
    """Train as one rank; return the run directory."""
    from pretrain.recipe import make_recipe
    from pretrain.training import run as training_run

    port = next(ports)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RANK": str(rank), "WORLD_SIZE": "2"}
    world = World(
        rank=rank, world_size=2, local_rank=rank, local_world_size=2, node_rank=0, master_addr="127.0.0.1",
        master_port=int(port),
    )  # fmt: skip
    data = {"path": str(folder / "tokens"), "split": "100,0,0", "num_workers": 0}
    recipe = make_recipe({**RECIPE, "data": data}, overrides)
    training_run.train(recipe, backend_name="cpu", run_dir=folder / name, resume=resume, world=world)
    return folder / name


def rolled_back_and_by_hand(folder, rank, case, overrides, ports):
    """Train with a rollback, and again by hand from its checkpoint; return how they differ."""
    with broken_once(25) if case.startswith("not finite") else nullcontext():
        run_dir = train(folder, f"{case} rolled back", rank, ports, *overrides)
    events = [line for line in lines_of(run_dir) if line.get("event") in ("loss_spike", "rollback")]
    assert events, f"{case}: no spike"
    begin = events[0]["iteration"]
    skipped = ",".join(f"{each['first_left_out']}-{each['last_left_out']}" for each in events)
    by_hand = folder / f"{case} by hand"
    if rank == 0:
        (by_hand / "checkpoints").mkdir(parents=True)
        checkpoint = f"checkpoints/iter_{begin:07d}"
        shutil.copytree(run_dir / checkpoint, by_hand / checkpoint)
    train(
        folder, by_hand.name, rank, ports, *overrides, f"train.iterations_to_skip=[{skipped}]",
        "train.loss_spike.threshold=null", resume=True,
    )  # fmt: skip
    last = f"checkpoints/iter_{ITERATIONS:07d}"
    ours, theirs = losses(run_dir, begin), losses(by_hand, begin)
    return {
        "events": events,
        "checkpoints": different_parts(run_dir / last, by_hand / last),
        "losses": [ours, theirs],
        "causes": sorted({line["slowdown_cause"] for line in lines_of(run_dir) if "slowest_rank" in line}),
        "differing lines": sorted(
            number for number in ours.keys() | theirs.keys() if ours.get(number) != theirs.get(number)
        ),
    }


def with_gradients_of_rank_1_broken(folder, rank, ports):
    """Train with gradients of one rank that are not finite in step 5; return what is said of it."""
    overrides = ("train.train_iters=9", "checkpoint.save_interval=3", "train.check_replicas_interval=null")
    with broken_once(5, backward) if rank == 1 else nullcontext():
        run_dir = train(folder, "named", rank, ports, *ROLLBACKS[next(iter(ROLLBACKS))], *overrides)
    return [line["text"] for line in lines_of(run_dir) if line.get("event") == "rollback"]


def backward(output):
    """Return the output, whose gradients will be nan."""
    output = output.clone()
    output.register_hook(lambda gradient: gradient * math.nan)
    return output


@contextmanager
def broken_once(number, spoil=lambda output: output * math.nan):
    """Let the loss of a process's micro-batch of this number be nan, or what `spoil` makes of it."""
    from pretrain.model.gpt import GPT

    forward, calls = GPT.forward, count(1)

    def broken(model, *arguments, **options):
        output = forward(model, *arguments, **options)
        return spoil(output) if next(calls) == number else output

    GPT.forward = broken
    try:
        yield
    finally:
        GPT.forward = forward


def with_a_flipped_bit(folder, rank, ports):
    """Flip one bit of a weight on rank 1 before iteration 7; return the error."""
    from pretrain.engine.megatron.engine import MegatronEngine
    from pretrain.errors import TrainingError

    taken = []
    step = MegatronEngine.train_step

    def flipping(engine, *arguments):
        if len(taken) == 6 and rank == 1:
            weight = engine.models[0].decoder.layers[1].mlp.linear_fc2.weight
            weight.data.view(-1)[5].neg_()
        taken.append(0)
        return step(engine, *arguments)

    MegatronEngine.train_step = flipping
    try:
        train(folder, "flipped", rank, ports, "train.loss_spike.threshold=null", "train.check_replicas_interval=5")
    except TrainingError as error:
        return str(error)
    finally:
        MegatronEngine.train_step = step


def with_updates_left_out(folder, rank, case, overrides, ports):
    """Train with `skip`, and again without the batches that it left out; return how they differ."""
    same = (
        *overrides,
        "model.hidden_dropout=0.0",
        "model.attention_dropout=0.0",
        f"checkpoint.save_interval={ITERATIONS}",
    )
    skipping = train(
        folder, f"{case} skipped", rank, ports, *same, "train.loss_spike={threshold: 1.3, action: skip}"
    )  # fmt: skip
    spikes = [line["spike_iteration"] for line in lines_of(skipping) if line.get("event") == "loss_spike"]
    skipped = [line["iteration"] for line in lines_of(skipping) if line.get("skipped_iterations")]
    without = train(
        folder, f"{case} without", rank, ports, *same, "train.loss_spike.threshold=null",
        f"train.iterations_to_skip={spikes}",
    )  # fmt: skip
    last = f"checkpoints/iter_{ITERATIONS:07d}"
    return {"spikes": spikes, "skipped": skipped, "checkpoints": different_parts(skipping / last, without / last)}


def different_parts(one, other):
    """Return what differs in two checkpoints: files, and entries of common.pt and of its progress by their names."""
    import torch

    from checkpoint.comparison import differing

    ours, theirs = (torch.load(folder / "common.pt", weights_only=False) for folder in (one, other))
    for common in (ours, theirs):
        common |= {f"progress.{key}": value for key, value in common.pop("progress").items()}
    files = set(differing(one, other)) - {"common.pt"}
    return sorted(files | {key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)})


def losses(run_dir, begin):
    """Return loss, norm and learning rate of the iterations after `begin`."""
    return {
        str(line["iteration"]): [line["lm_loss"], line["grad_norm"], line["learning_rate"], line["consumed_samples"]]
        for line in lines_of(run_dir)
        if line["kind"] == "train" and line["iteration"] > begin
    }


def lines_of(run_dir):
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    main()
