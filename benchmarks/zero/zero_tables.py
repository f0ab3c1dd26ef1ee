"""The tables of docs/zero.md, from the results: `python -m benchmarks.zero.zero_tables` writes them there."""

from __future__ import annotations

import json
import re

from benchmarks import machine

PAGE = machine.ROOT / "docs" / "zero.md"
SHOWN = {"megatron": "megatron", "megatron ZeRO-1": "megatron, ZeRO-1"}
MEASURED = ("peak", "between steps")


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """Return the page with every table between `<!-- NAME -->` and `<!-- end -->` generated again."""
    for name, table in tables().items():
        page, found = re.subn(f"(?s)(<!-- {name} -->\n).*?(\n<!-- end -->)", rf"\g<1>{table}\g<2>", page)
        if found != 1:
            raise SystemExit(f"{PAGE}: {found} times <!-- {name} --> ... <!-- end -->")
    return page


def tables() -> dict[str, str]:
    """Return the tables by name."""
    memory, step = (json.loads((machine.RESULTS / f"zero_{name}.json").read_text()) for name in ("memory", "step"))
    return {
        "memory fp32": memory_table(memory, "fp32"),
        "memory bf16": memory_table(memory, "bf16"),
        "sizes": sizes_table(memory),
        "step": step_table(step),
    }


def memory_table(result: dict, dtype: str) -> str:
    """Bytes per parameter: theory, peak of a step, and memory between steps."""
    cases = [case for case in result["cases"] if case["dtype"] == dtype and case["sizes"] == "small"]
    ranks = sorted({case["ranks"] for case in cases})
    systems = [case["system"] for case in cases if case["ranks"] == ranks[-1]]
    columns = ("theory", *MEASURED)
    rows = [[dtype, *(f"{column}, {number} ranks" for number in ranks for column in columns)]]
    for system in systems:
        found = {case["ranks"]: case for case in cases if case["system"] == system}
        numbers = [f"{found[number][column]:.1f}" for number in ranks for column in columns]
        rows.append([_shown(system), *numbers])
    return _table(rows)


def sizes_table(result: dict) -> str:
    """GB that DeepSpeed's own sizes need more, at the peak of a step and between steps."""
    cases = {(case["system"], case["dtype"], case["sizes"]): case for case in result["cases"] if case["ranks"] == 2}
    systems = dict.fromkeys(system for system, _, sizes in cases if sizes == "default")
    rows = [["GB more", *(f"{column}, {dtype}" for dtype in ("fp32", "bf16") for column in MEASURED)]]
    for system in systems:
        more = [
            cases[system, dtype, "default"][column] - cases[system, dtype, "small"][column]
            for dtype in ("fp32", "bf16")
            for column in MEASURED
        ]
        rows.append([_shown(system), *(f"{abs(bytes_each) * result['parameters'] / 1e9:.1f}" for bytes_each in more)])
    return _table(rows)


def step_table(result: dict) -> str:
    """Seconds per step, and ratios to the megatron engine's ZeRO-1: the median with its range."""
    dtypes = [dtype for dtype in ("fp32", "bf16") if dtype in result]
    rows = [["", *(f"{column}, {dtype}" for dtype in dtypes for column in ("seconds", "ratio", "ratio of work"))]]
    for number, group in enumerate(result["fp32"]):
        base, *others = group["seconds"]
        for system in [base, *others] if number == 0 else others:
            cells = []
            for measured in (result[dtype][number] for dtype in dtypes):
                ratios = [measured[f"{clock} over {base}"].get(system) for clock in ("seconds", "cpu_seconds")]
                cells += [f"{measured['seconds'][system]['median']:.2f}", *map(_ratio, ratios)]
            rows.append([_shown(system), *cells])
    return _table(rows)


def _ratio(summary: dict | None) -> str:
    if summary is None:
        return "1"
    return f"{summary['median']:.2f} ({min(summary['all']):.2f} to {max(summary['all']):.2f})"


def _shown(system: str) -> str:
    return SHOWN.get(system, f"deepspeed, {system}")


def _table(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"| --- |{' ---: |' * (len(rows[0]) - 1)}", *body])


if __name__ == "__main__":
    main()
