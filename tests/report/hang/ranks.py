"""States of ranks, made by hand."""

from pretrain.plugins.collective_record import CalledCollective
from pretrain.report.hang.awaited_collective import Frame, Stack
from pretrain.report.hang.position import TrainingPlace
from pretrain.report.hang.rank_state import RankProcess, RankState

TP, DP, PP = "TENSOR_MODEL_PARALLEL_GROUP", "DATA_PARALLEL_GROUP", "PIPELINE_MODEL_PARALLEL_GROUP"
STEP = "forward-backward"


def called(group=TP, ranks=(0, 1), number=5, operation="all_reduce", **values):
    values = {"shapes": ((4, 8),), "dtype": "float32", "pending": True, "called": 1.0, "library": "nccl", **values}
    return CalledCollective(operation=operation, group=group, ranks=ranks, number=number, **values)


def message(operation, peer, ranks=(0, 1)):
    return called(PP, ranks, 0, operation, peer=peer, is_message=True, library="")


def state(rank, waits_in=None, *, done=(), at="", **values):
    """Return a rank in layer 2 of 4; `done` are collectives that it has called before, `at` is "file:line function"."""
    place, _, function = at.partition(" ")
    file, _, line = place.partition(":")
    frames = (Frame(file, int(line), function),) if at else ()
    where = {"activity": STEP, "iteration": 8, "micro_batch": 1, "layer": 2, "direction": "forward"}
    where |= {name: values.pop(name) for name in TrainingPlace._fields if name in values}
    return RankState(
        rank=rank,
        host="node1",
        pid=100 + rank,
        waits_in=waits_in,
        called=(*done, *([waits_in] if waits_in and not waits_in.is_message else ())),
        stacks=(Stack("MainThread", frames),),
        **{"seconds": 61.0, "layers": 4, **values},
        at=TrainingPlace(**where),
    )


def processes(count, host="node1"):
    return {rank: RankProcess(rank, host, 100 + rank, f"{host} 1", 7) for rank in range(count)}


def by_rank(*states):
    return {each.rank: each for each in states}
