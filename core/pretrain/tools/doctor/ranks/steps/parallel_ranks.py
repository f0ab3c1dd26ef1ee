"""The groups of ranks that communicate in a training."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pretrain.recipe import Recipe

Groups = tuple[tuple[int, ...], ...]


def groups_of(recipe: Recipe | None, world_size: int) -> Mapping[str, Groups]:
    """Return the groups by their kind: of all ranks, tensor-parallel, data-parallel; those of one rank are left out.

    Ranks are numbered as megatron-core does (parallel_state.initialize_model_parallel, order tp-cp-ep-dp-pp): tensor
    ranks are neighbours, then data-parallel ones, then stages. A kind that is all ranks again is left out too.

    Args:
        recipe: None: only the group of all ranks.
        world_size: number of ranks.
    """
    kinds: dict[str, Groups] = {"all ranks": (tuple(range(world_size)),)}
    if recipe is not None:
        tensor, stages = recipe.parallel.tensor_model_parallel_size, recipe.parallel.pipeline_model_parallel_size
        of_stage = world_size // stages
        kinds["tensor groups"] = tuple(tuple(range(first, first + tensor)) for first in range(0, world_size, tensor))
        kinds["data groups"] = tuple(
            tuple(range(stage * of_stage + place, (stage + 1) * of_stage, tensor))
            for stage in range(stages)
            for place in range(tensor)
        )
    return {
        kind: groups
        for kind, groups in kinds.items()
        if len(groups[0]) > 1 and (kind == "all ranks" or len(groups) > 1)
    }


def rounds_of_pairs(members: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds in which every member meets at most one other; over all rounds every pair meets once.

    The circle method of round-robin tournaments: one member stays, the others move on by a place a round.
    """
    circle: list[int | None] = [*members, *([None] if len(members) % 2 else [])]
    half = len(circle) // 2
    rounds = []
    for _ in range(len(circle) - 1):
        met = zip(circle[:half], reversed(circle[half:]), strict=True)
        rounds.append([(min(a, b), max(a, b)) for a, b in met if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return [pairs for pairs in rounds if pairs]


def neighbour_rounds(members: Sequence[int], distance: int = 1) -> list[list[tuple[int, int]]]:
    """Return rounds in which every member meets the one `distance` places on, in a ring."""
    count = len(members)
    waiting = [(members[place], members[(place + distance) % count]) for place in range(count)]
    rounds: list[list[tuple[int, int]]] = []
    for pair in dict.fromkeys((min(pair), max(pair)) for pair in waiting):
        free = next((pairs for pairs in rounds if not {rank for met in pairs for rank in met} & set(pair)), None)
        if free is None:
            rounds.append([pair])
        else:
            free.append(pair)
    return rounds


def schedule(nodes: Sequence[int], most: int = 16) -> list[list[tuple[int, int]]]:
    """Return the rounds of pairs whose link is measured.

    With up to `most` ranks every pair; with more, neighbours in the ring of all ranks, and of the first ranks of the
    nodes every pair, or with more than `most` nodes those 1, 2, 4, ... nodes apart.

    Args:
        nodes: the node of each rank.
        most: see above.
    """
    ranks = range(len(nodes))
    if len(nodes) <= most:
        return rounds_of_pairs(ranks)
    first = [next(rank for rank in ranks if nodes[rank] == node) for node in dict.fromkeys(nodes)]
    if len(first) <= most:
        return neighbour_rounds(ranks) + rounds_of_pairs(first)
    distances = [1 << power for power in range((len(first) // 2).bit_length())]
    return neighbour_rounds(ranks) + [pairs for each in distances for pairs in neighbour_rounds(first, each)]
