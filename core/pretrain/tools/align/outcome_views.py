"""Result of a comparison as text, as JSON and as an HTML page with the differences over the depth of the model."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.report import html
from pretrain.report.plain_text import columns
from pretrain.report.svg import ChartLine, chart
from pretrain.tools.align.comparing.outcome import BACKWARD, FORWARD, GRADIENTS, SIDES, UPDATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pretrain.tools.align.comparing.outcome import AlignResult, Compared, WrongCall
    from pretrain.tools.align.comparing.recording import Recording

_BETWEEN = "look at what is between the kernels: communication, layout, engine"


def outcome_text(outcome: AlignResult, sides: Sequence[Recording]) -> str:
    """Return the result in a few lines, and the kernels of both sides."""
    lines = [f"{name:<8}{side.title}; {side.versions}" for name, side in zip(SIDES, sides, strict=True)]
    samples = f"{len(sides[0].samples)} samples in {sides[0].steps} step{'s' * (sides[0].steps > 1)}"
    lines.append(f"{samples}, {len(outcome.compared)} comparisons in order of computation")
    lines += ["", *headline(outcome, sides), ""]
    lines += [*(f"not compared: {each}" for each in outcome.skipped), *([""] if outcome.skipped else [])]
    rows = [("operation", *SIDES)]
    blamed = outcome.cause.operation if outcome.cause else ""
    for operation in operations(sides):
        first, second = (side.kernel(operation) for side in sides)
        marked = f"{operation} *" if operation == blamed else operation
        rows.append((marked, first, "the same" if first == second else second))
    return "\n".join([*lines, *columns(rows, width=160)]).rstrip()


def headline(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    """Return what was found, first where: the cause if a kernel is wrong by itself, else the first difference."""
    lines = _verdict(outcome, sides)
    if outcome.alike:
        first = outcome.alike[0]
        kernel = sides[0].kernel(first.operation, first.place.module)
        where = f"{_where(first, sides[0].layers)}: {_call(first, sides)}, kernel {kernel}"
        amount = f"{_off(first)}, {first.explained:.2g} explained"
        lines.append(f"both sides differ from float64 by about the same: {where}, {amount}")
    return [*lines, *outcome.notes]


def _verdict(outcome: AlignResult, sides: Sequence[Recording]) -> list[str]:
    first, cause, layers = outcome.first, outcome.cause, sides[0].layers
    if cause is not None and outcome.is_explained_by_cause:
        kernel = sides[cause.side].kernel(cause.operation, cause.place.module)
        whose = f"kernel {kernel} of the {SIDES[cause.side]} side {_off(cause)}"
        return [
            f"differs at {_where(cause, layers)}: {_call(cause, sides)}",
            f"  {whose} from float64 for the same inputs, {cause.explained:.2g} explained",
            _consequence(outcome, layers),
        ]
    if first is not None:
        lines = [f"differs at {_where(first, layers)}: {first.what} differs by {_amount(first)}"]
        lines.append(_known(first, outcome, sides))
        if cause is not None:
            whose = f"{_call(cause, sides)} {_off(cause)} of the {SIDES[cause.side]} side"
            lines.append(f"  later, {_where(cause, layers)}: {whose}")
        return [*lines, _consequence(outcome, layers)]
    dtypes = " and ".join(dict.fromkeys(side.arithmetic for side in sides))
    lines = [f"aligned: nothing differs by more than {dtypes} explains"]
    nearest = max(outcome.compared, key=lambda each: each.share)
    if nearest.share:
        lines.append(f"largest difference: {_where(nearest, layers)}: {nearest.what} differs by {_amount(nearest)}")
    else:
        lines.append("everything that was compared is equal")
    return lines


def _known(first: Compared, outcome: AlignResult, sides: Sequence[Recording]) -> str:
    if outcome.unchecked:
        return f"  this call was not checked against float64: {outcome.unchecked}"
    if any(each.order <= first.order for each in outcome.alike):
        return f"  up to here no kernel differs from float64 on one side alone: {_BETWEEN}"
    part = " in the first micro-batch" if any(side.has_micro_batches for side in sides) else ""
    return f"  up to here every kernel agrees with float64 for the same inputs{part}: {_BETWEEN}"


def _off(cause: WrongCall) -> str:
    return f"is off by {cause.error:.2g}" if isfinite(cause.error) else "is missing or not finite"


def operations(sides: Sequence[Recording]) -> list[str]:
    """Return the operations that any side has a kernel for."""
    return list(dict.fromkeys(row["operation"] for side in sides for row in side.manifest["kernels"]["rows"]))


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


def _consequence(outcome: AlignResult, layers: int) -> str:
    differing = [each for each in outcome.compared if each.differs]
    if not differing:
        return "  no tensor differs between the sides by more than is explained yet"
    first = differing[0]
    share = f"{len(differing)} of {len(outcome.compared)} comparisons differ"
    return f"  first tensor that differs: {_where(first, layers)}: {first.what}, by {_amount(first)}; {share}"


def _amount(found: Compared) -> str:
    part = ""
    if found.entries is not None:
        part = f" in the {found.entries[0]} of {found.entries[1]} entries that are not rounding error"
    return f"{found.difference:.2g}{part}, {found.explained:.2g} explained"


def outcome_json(outcome: AlignResult, sides: Sequence[Recording]) -> dict[str, Any]:
    """Return the result; numbers that are not finite as null."""
    return {
        "aligned": outcome.is_aligned,
        "text": headline(outcome, sides),
        "first_difference": _found(outcome.first),
        "wrong_calls": [{**_found(each), "side": SIDES[each.side]} for each in outcome.wrong],
        "sides": [
            {"title": side.title, **{name: side.manifest[name] for name in ("pretrain", "torch", "kernels")}}
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
    for name, value in values.items():
        if isinstance(value, float) and not isfinite(value):
            values[name] = None
    place = {"position": None, "module": None} if found.place is None else asdict(found.place)
    return {"step": found.step, "phase": found.phase, **place, **values}


_CHARTS = (
    (FORWARD, "forward: outputs"),
    (BACKWARD, "backward: gradients of inputs"),
    (GRADIENTS, "gradients of parameters"),
    (UPDATE, "updates of parameters"),
)
_AXIS = (
    "Dots: the largest difference at each place of the model, as a part of what the dtype explains there; the line at "
    "1 is all of that. 0 is before the layers, {after} after them."
)
_LEAST, _MOST = 1e-4, 1e6
"""Shares beyond these are drawn there, one that is no number at the top: the scale is logarithmic."""


def page(outcome: AlignResult, sides: Sequence[Recording]) -> str:
    """Return the HTML page."""
    title = f"Alignment of {Path(sides[0].manifest['source']).name}"
    heads = (f"{name}: {side.title}; {side.versions}" for name, side in zip(SIDES, sides, strict=True))
    verdict, *more = headline(outcome, sides)
    parts = [
        html.paragraph(heads),
        html.paragraph([verdict], "verdict"),
        html.paragraph(line.strip() for line in more),
        html.paragraph([_AXIS.format(after=sides[0].layers + 1)], "axis-name"),
    ]
    for step in range(1, sides[0].steps + 1):
        charts = html.charts(_chart(outcome, step, phase, title) for phase, title in _CHARTS)
        parts.append(f"<h2>Step {step}</h2>{charts}")
    kernels = [(operation, *(side.kernel(operation) for side in sides)) for operation in operations(sides)]
    parts.append(html.section("Kernels", html.table(["operation", *SIDES], kernels), unfolded=True))
    parts.append(html.section("Everything that differs", _differing(outcome)))
    return html.framed(title, parts)


def _chart(outcome: AlignResult, step: int, phase: int, title: str) -> str:
    found: dict[int, float] = {}
    for each in outcome.compared:
        if each.order[:2] == (step, phase) and each.place is not None:
            share = min(each.share, _MOST) if isfinite(each.share) else _MOST
            found[each.place.position] = max(found.get(each.place.position, _LEAST), share)
    curves = [
        ChartLine(name="explained", points=[(position, 1.0) for position in sorted(found)], colour=1),
        ChartLine(name="difference", points=sorted(found.items()), colour=0, marked=True),
    ]
    return chart(title, curves, logarithmic=True, x_name="place")


def _differing(outcome: AlignResult) -> str:
    rows = []
    for each in outcome.compared:
        if each.differs:
            place = "" if each.place is None else str(each.place.position)
            numbers = f"{each.difference:.2g}", f"{each.explained:.2g}"
            rows.append((str(each.step), each.phase, place, each.what, *numbers))
    return html.table(["step", "phase", "place", "what", "difference", "explained"], rows)
