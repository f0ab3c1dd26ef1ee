"""Result of a comparison as text and as JSON."""

from __future__ import annotations

import math
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from pretrain.report.plain_text import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.comparing.outcome import AlignResult, Compared, WrongCall
    from pretrain.tools.align.comparing.recording import Recording

SIDES = ("first", "second")
_BETWEEN = "look between the kernels: communication, the layout, the engine"


def outcome_text(outcome: AlignResult, sides: Sequence[Recording]) -> str:
    """Return the result in a few lines, and the kernels of both sides."""
    lines = [f"{name:<8}{side.title}; {side.versions}" for name, side in zip(SIDES, sides, strict=True)]
    samples = f"{len(sides[0].samples)} samples in {sides[0].steps} step{'s' * (sides[0].steps > 1)}"
    lines.append(f"{samples}, {len(outcome.compared)} comparisons in order of computation")
    lines += ["", *headline(outcome, sides), ""]
    lines += [*(f"not compared: {each}" for each in outcome.skipped), *([""] if outcome.skipped else [])]
    return "\n".join([*lines, *kernel_lines(outcome, sides)]).rstrip()


def headline(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    """Return what was found, first where: the cause if a kernel is wrong by itself, else the first difference."""
    return [*_verdict(outcome, sides), *_alike(outcome, sides), *outcome.notes]


def _verdict(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    first, cause, layers = outcome.first, outcome.cause, sides[0].layers
    if cause is not None and outcome.is_explained_by_cause:
        return [*_wrong_call(cause, sides), *_consequence(outcome, layers)]
    if first is not None:
        later = []
        if cause is not None:
            later = [
                f"  later, {_where(cause, layers)}: {_call(cause, sides)} {_off(cause)} of the {SIDES[cause.side]} side"
            ]
        where = f"differs at {_where(first, layers)}: {first.what} differs by {_amount(first)}"
        return [where, *_known(first, outcome, sides), *later, *_consequence(outcome, layers)]
    dtypes = " and ".join(dict.fromkeys(side.dtype for side in sides))
    lines = [f"aligned: nothing differs by more than {dtypes} explains"]
    nearest = max(outcome.compared, key=lambda each: each.share)
    if nearest.share:
        lines.append(f"nearest to it: {_where(nearest, layers)}: {nearest.what} differs by {_amount(nearest)}")
    else:
        lines.append("all that was compared is equal")
    return lines


def _known(first: Compared, outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    """Return what the checks of single calls tell about a difference that none of them explains."""
    if outcome.unchecked:
        return [f"  this call was not checked by itself: {outcome.unchecked}"]
    if any(each.order <= first.order for each in outcome.alike):
        return [f"  up to here no kernel differs from float64 on one side alone: {_BETWEEN}"]
    part = " in the first micro-batch" if any(side.has_micro_batches for side in sides) else ""
    return [f"  up to here every kernel agrees with float64 on the same tensors{part}: {_BETWEEN}"]


def _alike(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    """Return a warning of the first kernel that both sides have wrong."""
    if not outcome.alike:
        return []
    first = outcome.alike[0]
    where = f"{_where(first, sides[0].layers)}: {_call(first, sides)}, kernel {sides[0].kernel(first.operation)}"
    return [f"both sides are off from float64 alike: {where}, {_off(first)}, {first.explained:.2g} explained"]


def _wrong_call(cause: WrongCall, sides: Sequence[Recording]) -> list[str]:
    kernel, side = sides[cause.side].kernel(cause.operation), SIDES[cause.side]
    amount = f"{_off(cause)} from float64 on the tensors that it was given, {cause.explained:.2g} explained"
    return [
        f"differs at {_where(cause, sides[0].layers)}: {_call(cause, sides)}",
        f"  kernel {kernel} of the {side} side {amount}",
    ]


def _off(cause: WrongCall) -> str:
    """Return the amount of an error; an infinite one is that of a gradient that is missing or no number."""
    return f"is off by {cause.error:.2g}" if isfinite(cause.error) else "is missing or not finite"


def kernel_lines(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    """Return a line for each operation, with the kernel of both sides."""
    rows = [("operation", *SIDES)]
    blamed = outcome.cause.operation if outcome.cause else ""
    for operation in operations(sides):
        names = [side.kernel(operation) for side in sides]
        rows.append((f"{operation} *" if operation == blamed else operation, names[0], _or_same(names)))
    return columns(rows, width=160)


def operations(sides: Sequence[Recording]) -> list[str]:
    """Return the operations that any side has a kernel for."""
    return list(dict.fromkeys(row["operation"] for side in sides for row in side.manifest["kernels"]["rows"]))


def _or_same(names: Sequence[str]) -> str:
    return "the same" if names[0] == names[1] else names[1]


def _where(found: Compared | WrongCall, layers: int) -> str:
    place = f", {found.place.title(layers)}" if found.place is not None else ""
    return f"step {found.step}{place}, {found.phase}"


def _call(cause: WrongCall, sides: Sequence[Recording]) -> str:
    if cause.operation == "optimizer":
        return f"optimizer, {cause.what}"
    where = f" in {cause.place.module}" if cause.place.module else ""
    call = f", call {cause.call + 1}" if cause.call else ""
    rank = f", rank {cause.rank}" if len(sides[cause.side].ranks) > 1 else ""
    what = cause.what if isfinite(cause.error) else f"no finite {cause.what}"
    return f"{what} of {cause.operation}{where}{call}{rank}"


def _consequence(outcome: AlignResult, layers: int) -> list[str]:
    differing = [each for each in outcome.compared if each.differs]
    if not differing:
        return ["  no tensor of the two sides differs by more than is explained yet"]
    first = differing[0]
    share = f"{len(differing)} of {len(outcome.compared)} comparisons differ"
    return [f"  first tensor that differs: {_where(first, layers)}: {first.what}, by {_amount(first)}; {share}"]


def _amount(found: Compared) -> str:
    part = ""
    if found.entries is not None:
        part = f" in the {found.entries[0]} of {found.entries[1]} entries that are no rounding error"
    return f"{found.difference:.2g}{part}, {found.explained:.2g} explained"


def outcome_json(outcome: AlignResult, sides: Sequence[Recording]) -> dict[str, Any]:
    """Return the result; numbers that are not finite as null."""
    return {
        "aligned": outcome.is_aligned,
        "text": headline(outcome, sides),
        "first_difference": _found(outcome.first),
        "wrong_calls": [{**_found(each), "side": SIDES[each.side]} for each in outcome.wrong],
        "sides": [
            {
                "title": side.title,
                "pretrain": side.manifest["pretrain"],
                "torch": side.manifest["torch"],
                "kernels": side.manifest["kernels"],
            }
            for side in sides
        ],
        "wrong_in_both": [_found(each) for each in outcome.alike],
        "losses": [[side.loss(step) for side in sides] for step in range(1, sides[0].steps + 1)],
        "compared": [_found(each) for each in outcome.compared],
        "not_compared": list(outcome.skipped),
        "notes": list(outcome.notes),
    }


def _found(found: Compared | WrongCall | None) -> dict[str, Any]:
    if found is None:
        return {}
    values = {name: value for name, value in asdict(found).items() if name not in {"order", "place", "ticks"}}
    values = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
    place = found.place
    return {
        "step": found.step,
        "phase": found.phase,
        "position": None if place is None else place.position,
        "module": None if place is None else place.module,
        **values,
    }
