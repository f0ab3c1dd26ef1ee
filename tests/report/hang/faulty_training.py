"""Trainings in which one rank hangs: `faulty_training:train`, with the fault in the variable FAULT, as NAME:RANK."""

import os
import signal
import time

import torch
import torch.distributed as dist

from pretrain.training.run import train as real_train

ITERATION = 4
"""In which the fault comes."""


def train(recipe, *, run_dir, world, **arguments):
    """Train, with the fault installed on its rank."""
    name, _, rank = os.environ["FAULT"].partition(":")
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / f"{world.rank}.pid").write_text(str(os.getpid()))
    if rank in {"all", str(world.rank)}:
        FAULTS[name](world)
    return real_train(recipe, run_dir=run_dir, world=world, **arguments)


def _around(owner, method, before):
    """Call `before` ahead of a method, with its arguments."""
    original = getattr(owner, method)

    def wrapped(*arguments, **keywords):
        before(*arguments, **keywords)
        return original(*arguments, **keywords)

    setattr(owner, method, wrapped)


def _sleep(*_arguments, **_keywords):
    time.sleep(3600)


class _Watched:
    """The position of the training in this process, as soon as there is one."""

    def __init__(self):
        from pretrain.report.hang.position import Position

        self.positions = []
        original = Position.__init__

        def made(position, *arguments):
            original(position, *arguments)
            self.positions.append(position)

        Position.__init__ = made

    def in_fault(self, **place):
        now = next((each for each in self.positions if each.iteration), None)
        return now is not None and now.iteration >= ITERATION and all(getattr(now, k) == v for k, v in place.items())


def _in_layer(direction, what):
    def install(_world):
        from pretrain.report.hang.position import Position

        original = Position.move

        def move(position, layer, part, towards, micro_batch):
            original(position, layer, part, towards, micro_batch)
            if position.iteration >= ITERATION and (layer, towards) == (2, direction) and position.activity == STEP:
                what()

        Position.move = move

    return install


STEP = "forward-backward"


def _in_data(_world):
    from pretrain.data.samples.batches import MicroBatches

    seen = []

    def slow(*_arguments):
        seen.append(1)
        if len(seen) > 2 * ITERATION:
            _sleep()

    _around(MicroBatches, "__next__", slow)


def _in_save(_world):
    from pretrain.training.loop import Training

    def install(_training):
        from pretrain.checkpoint import storage  # imports megatron-core: after the bridge

        _around(storage, "save", _sleep)

    _around(Training, "run", install)


def _in_evaluation(_world):
    from pretrain.training.loop import Training

    def install(_training):
        from pretrain.training.training_data import Evaluation  # imports megatron-core: after the bridge

        _around(Evaluation, "run", _sleep)

    _around(Training, "run", install)


def _before_a_message(_world):
    """Sleep between two stages' messages: the next stage waits for what never comes."""
    watched = _Watched()
    from torch import distributed

    for name in ("isend", "irecv"):
        _around(distributed, name, lambda *_a, **_k: watched.in_fault() and _sleep())


def _other_shape(_world):
    """Call all-reduce with a tensor of another size."""
    _replace_all_reduce(lambda tensor: torch.zeros(7))


def _skipped(_world):
    """Leave out one all-reduce of a layer."""
    _replace_all_reduce(lambda tensor: None)


def _replace_all_reduce(other):
    watched, original, done = _Watched(), dist.all_reduce, []

    def all_reduce(tensor, *arguments, **keywords):
        if not done and watched.in_fault(layer=2, direction="forward", activity=STEP):
            done.append(1)
            tensor = other(tensor)
            if tensor is None:
                return None
        return original(tensor, *arguments, **keywords)

    dist.all_reduce = torch.distributed.all_reduce = all_reduce


def _crossed_groups(world):
    """Call the collectives of two groups in another order on this rank."""
    from pretrain.training.loop import Training

    original = Training._iterate
    groups = []

    def iterate(training):
        if not groups:
            groups.extend(
                dist.new_group(list(range(world.world_size)), group_desc=name) for name in ("first", "second")
            )
        if training.progress.iteration + 1 == ITERATION:
            order = groups if world.rank == 0 else list(reversed(groups))
            for group in order:
                dist.all_reduce(torch.zeros(3), group=group)
        return original(training)

    Training._iterate = iterate


def _holding_the_lock():
    """Hold Python's lock in C: a regular expression that backtracks for longer than anyone waits."""
    import re

    re.match(r"(a*)*b", "a" * 40)


def _swallowed(_world):
    """Go on after an exception in the step, past its collectives."""
    from pretrain.training.loop import Training

    original = Training._step

    def step(training, batch):
        if training.progress.iteration + 1 == ITERATION:
            training.progress.iteration += 1
            training.progress.consumed_samples += batch
        else:
            original(training, batch)

    Training._step = step


def _error_while_saving(_world):
    """Fail in a step while a checkpoint is written beside the steps, for long."""
    from pretrain.checkpoint.background import BackgroundSaves
    from pretrain.errors import DataError
    from pretrain.training.loop import Training

    def fail(training, _batch):
        if training.progress.iteration + 1 == 7:
            msg = "sample 4711 is damaged"
            raise DataError(msg)

    _around(BackgroundSaves, "_run", lambda *_arguments: time.sleep(60))
    _around(Training, "_step", fail)


FAULTS = {
    "none": lambda _world: None,
    "forward": _in_layer("forward", _sleep),
    "backward": _in_layer("backward", _sleep),
    "data": _in_data,
    "save": _in_save,
    "message": _before_a_message,
    "evaluation": _in_evaluation,
    "shape": _other_shape,
    "skipped": _skipped,
    "stopped": _in_layer("forward", lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "killed": _in_layer("forward", lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "crossed": _crossed_groups,
    "lock": _in_layer("backward", _holding_the_lock),
    "swallowed": _swallowed,
    "error while saving": _error_while_saving,
}
