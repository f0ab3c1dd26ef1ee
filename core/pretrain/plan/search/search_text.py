"""Result of a search as text of one screen, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pretrain.plan.search.search import Found, SearchResult

GIB = 2**30


def search_text(result: SearchResult) -> str:
    """Return the best layouts as arguments of `--set`, and why the others fell out."""
    device = result.device
    memory = "" if device.memory is None else f" with {device.memory / GIB:.0f} GiB"
    lines = [f"{result.devices} x {device.name}{memory}: {result.fitting} of {result.tried} legal layouts fit."]
    if result.best:
        lines += ["", "Fastest first, estimated from traced pieces; `pretrain plan` one for more."]
    for number, found in enumerate(result.best, start=1):
        lines += _entry(number, found)
    lines += _fallen_out(result)
    return "\n".join(lines)


def to_json(result: SearchResult) -> dict[str, object]:
    """Return the result as plain values.

    Returns:
        "devices"; "tried", "fitting" and "too_large": numbers of layouts; "best": a list; "nearest": the smallest of
        those that do not fit, or null; "refused": number of sizes by reason; "enough": null, or a number of devices for
        which a layout fits, with that layout. A layout has "set", a list of arguments,
        "peak_bytes" (an estimate), "most_bytes" (by which it fits or not), and "seconds", a list of the low and the
        high end, or null.
    """
    return {
        "devices": result.devices,
        "tried": result.tried,
        "fitting": result.fitting,
        "too_large": result.too_large,
        "best": [_plain(found) for found in result.best],
        "nearest": result.nearest and _plain(result.nearest),
        "refused": dict(result.refused),
        "enough": result.enough and {"devices": result.enough[0], **_plain(result.enough[1])},
    }


def _plain(found: Found) -> dict[str, object]:
    seconds = found.seconds and [found.seconds.low, found.seconds.high]
    return {
        "set": list(found.arguments),
        "peak_bytes": found.peak_bytes,
        "most_bytes": found.most_bytes,
        "seconds": seconds,
    }


def _entry(number: int, found: Found) -> list[str]:
    """Return a layout in lines: memory and time, what it is, and its arguments."""
    lines = ["", f"{number}. {_measures(found)}: {_layout(found)}"]
    return lines + _wrapped([f"--set {argument}" for argument in found.arguments] or ["the recipe as it is"])


def _measures(found: Found) -> str:
    peak = f"{found.peak_bytes / GIB:.1f} GiB (at most {found.most_bytes / GIB:.1f})"
    return peak if found.seconds is None else f"{found.seconds.low:.3g} to {found.seconds.high:.3g} s a step, {peak}"


def _layout(found: Found) -> str:
    choice = found.choice
    return f"{choice.tensor} tensor x {choice.pipeline} pipeline x {choice.data} data"


def _fallen_out(result: SearchResult) -> list[str]:
    lines = ["", "The rest:"] if result.too_large or result.refused else []
    if result.nearest is not None and result.device.memory is not None:
        over = (result.nearest.most_bytes - result.device.memory) / GIB
        lines.append(f"  {result.too_large} may not fit; the smallest of them by {over:.1f} GiB:")
        lines += _wrapped([f"--set {argument}" for argument in result.nearest.arguments] or ["the recipe as it is"])
    if result.enough is not None:
        devices, found = result.enough
        lines.append(f"  {devices} devices are enough: {_measures(found)}:")
        lines += _wrapped([f"--devices {devices}", *(f"--set {argument}" for argument in found.arguments)])
    lines += [f"  {count} not legal: {reason}" for reason, count in sorted(result.refused.items())]
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
