"""Write the tables of docs/scale.md from results/scale.json: `python -m benchmarks.scale.tables`."""

from __future__ import annotations

import json
from typing import NamedTuple

from benchmarks import machine
from benchmarks.scale.growth import BEYOND

PAGE = machine.ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- tables of benchmarks.scale -->", "<!-- end of tables -->"


class Row(NamedTuple):
    """One cost of the tables."""

    name: str
    act: str
    cost: str
    divided_by: float = 1


TABLES = {
    "Launchers, one for 8 ranks": (
        Row("rendezvous: bytes", "launchers: rendezvous", "store_bytes"),
        Row("rendezvous: requests", "launchers: rendezvous", "store_requests"),
        Row("rendezvous: seconds", "launchers: rendezvous", "seconds"),
        Row("while ranks run: requests a second", "launchers: watch", "store_requests", 2),  # ten times in two seconds
        Row("restart: bytes", "launchers: restart", "store_bytes"),
        Row("restart: requests", "launchers: restart", "store_requests"),
        Row("restart: seconds", "launchers: restart", "seconds"),
        Row("stop: bytes", "launchers: stop", "store_bytes"),
        Row("stop: requests", "launchers: stop", "store_requests"),
        Row("stop: seconds", "launchers: stop", "seconds"),
    ),
    "Ranks": (
        Row("start: bytes", "ranks: start", "store_bytes"),
        Row("start: requests", "ranks: start", "store_requests"),
        Row("start: seconds", "ranks: start", "seconds"),
        Row("groups of one agreement: sockets of rank 0", "ranks: exchange_groups", "sockets_of_first"),
        Row("groups: sockets of a rank, on average", "ranks: exchange_groups", "sockets_each"),
        Row("groups: bytes", "ranks: exchange_groups", "store_bytes"),
        Row("groups: requests", "ranks: exchange_groups", "store_requests"),
        Row("groups: seconds", "ranks: exchange_groups", "seconds"),
        Row("exchange of an iteration: seconds", "ranks: exchange", "seconds", 10),
        Row("agreement on a stop: seconds", "ranks: stop", "seconds"),
        Row("agreement on a checkpoint: seconds", "ranks: checkpoint", "seconds"),
        Row("hang report: seconds", "ranks: hang_report", "seconds"),
    ),
}


def tables(result: dict) -> str:
    """Return the tables as Markdown."""
    states = [(word, result[word]) for word in ("before", "now") if word in result]
    sizes = sorted({int(size) for _, state in states for act in state.values() for size in act["of"]})
    head = ["", "", *(f"{size:,}" for size in sizes), "growth", *(f"{size:,}" for size in BEYOND)]
    parts = []
    for title, rows in TABLES.items():
        lines = [f"| {' | '.join(head)} |", f"| --- | --- |{' ---: |' * (len(head) - 2)}"]
        for row in rows:
            for word, state in states:
                lines.append(f"| {' | '.join(_cells(row, word, state, sizes))} |")
        parts.append("\n".join([f"{title}:", "", *lines]))
    return "\n\n".join(parts)


def _cells(row: Row, word: str, state: dict, sizes: list[int]) -> list[str]:
    act = state.get(row.act, {"of": {}, "growth": {}})
    of, grown = act["of"], act["growth"].get(row.cost) or {}
    measured = [_number(of[str(size)][row.cost] / row.divided_by) if str(size) in of else "" for size in sizes]
    if row.cost == "seconds":  # all share this machine's cores: that says nothing of others
        grown = {}
    beyond = [grown.get("worked_out", {}).get(str(size)) for size in BEYOND]
    return [
        row.name,
        word,
        *measured,
        "" if not grown else f"N^{grown['exponent']:.2g}",
        *("" if value is None else f"*{_number(value / row.divided_by)}*" for value in beyond),
    ]


def _number(value: float) -> str:
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e4, " k")):
        if value >= size:
            return f"{value / (1e3 if unit == ' k' else size):.3g}{unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def main() -> None:
    """Replace what is between the marks of the page."""
    result = json.loads((machine.RESULTS / "scale.json").read_text())
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(result)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
