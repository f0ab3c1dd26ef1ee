"""A search's result as text of one screen, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pretrain.report.plain_text import indented
from pretrain.tools.plan.plan_json import plan_json
from pretrain.tools.plan.screen import WIDTH, verdict
from pretrain.tools.plan.wording import GIB, figures_text, gib, time_lines

if TYPE_CHECKING:
    from pretrain.tools.plan.search.search import Found, SearchResult


def search_text(result: SearchResult) -> str:
    """Return the best layouts as `--set` arguments, and why others are not legal or do not fit."""
    device = result.device
    memory = "" if device.memory is None else f" with {device.memory / GIB:.0f} GiB"
    lines = indented(f"{result.devices} x {device.name}{memory}: {_count(result)}", 0, WIDTH)
    if device.peak_flops and device.figures.memory_bandwidth:
        lines += indented(figures_text(device), 0, WIDTH)
    if result.best:
        lines += ["", "The fastest of those that were planned in full:"]
    for number, found in enumerate(result.best, start=1):
        lines += ["", f"{number}. {_layout(found)}", *_numbers(found), *_arguments(found)]
    lines += _rest(result)
    return "\n".join(lines)


def to_json(result: SearchResult) -> dict[str, object]:
    """Return the result as plain values.

    Returns:
        "devices"; "tried", "fitting", "planned" and "given_up": numbers of layouts (`SearchResult`); "best": a list;
        "nearest": the smallest layout where none fits, or null; "refused": number of sizes by reason; "enough": null,
        or a number of devices for which a layout fits, with that layout. A layout has "set", a list of arguments, and
        of its plan (`plan_json`) "peak_bytes", "fits", "layout" and "time".
    """
    return {
        "devices": result.devices,
        "tried": result.tried,
        "fitting": result.fitting,
        "planned": result.planned,
        "given_up": result.given_up,
        "best": [_plain(found) for found in result.best],
        "nearest": result.nearest and _plain(result.nearest),
        "refused": dict(result.refused),
        "enough": result.enough and {"devices": result.enough[0], **_plain(result.enough[1])},
    }


def _count(result: SearchResult) -> str:
    if not result.given_up:
        return f"{result.fitting} of {result.tried} legal layouts fit."
    return (
        f"none of the {result.planned} layouts planned in full fits; {result.given_up} of {result.tried} legal ones, "
        "which may fit, were not planned."
    )


def _plain(found: Found) -> dict[str, object]:
    plan = plan_json(found.plan)
    return {"set": list(found.arguments), **{name: plan[name] for name in ("peak_bytes", "fits", "layout", "time")}}


def _layout(found: Found) -> str:
    choice = found.choice
    return f"{choice.tensor} tensor x {choice.pipeline} pipeline x {choice.data} data"


def _numbers(found: Found) -> list[str]:
    plan = found.plan
    texts = [f"{gib(plan.peak_bytes)} GiB; {verdict(plan)}", *(() if plan.time is None else time_lines(plan.time))]
    return [line for text in texts for line in indented(text, 4, WIDTH)]


def _arguments(found: Found, *others: str) -> list[str]:
    return _wrapped([*others, *(f"--set {argument}" for argument in found.arguments)] or ["the recipe as it is"])


def _rest(result: SearchResult) -> list[str]:
    lines = ["", "The rest:"] if result.nearest or result.refused else []
    if result.nearest is not None and result.device.memory is not None:
        over = gib(result.nearest.plan.peak_bytes - result.device.memory)
        lines += [f"  the smallest layout takes {over} GiB too much:", *_arguments(result.nearest)]
    if result.enough is not None:
        devices, found = result.enough
        lines.append(f"  {devices} devices are enough: {_layout(found)}")
        lines += [*_numbers(found), *_arguments(found, f"--devices {devices}")]
    for reason, count in sorted(result.refused.items()):
        lines += indented(f"{count} not legal: {reason}", 2, WIDTH)
    return lines


def _wrapped(words: list[str], width: int = 80, margin: str = "    ") -> list[str]:
    """Return words in lines; none is cut."""
    lines = [margin + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(margin + word)
    return lines
