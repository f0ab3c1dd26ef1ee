"""Write the tables of flags in core/pretrain/tools/migrate/tables again, from clones of the four programs.

Each version's own argument parser is built by its own code (parser_probe.py), nothing is read off by hand; GPT-NeoX's
keys are the fields of its dataclasses. A new version takes the place of the newest in tables/versions.tsv, unless a
default that recipes need has changed: then it is one more.

Use: python extract_flags.py --megatron-lm CLONE --megatron-deepspeed CLONE --bigscience-megatron-deepspeed CLONE
    --gpt-neox CLONE --output DIR
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from flag_rows import COLUMNS, written_row

from pretrain.tools.migrate.megatron.meanings import GROUPED, group_of, grouped, is_listed
from pretrain.tools.migrate.programs import (
    FAMILIES,
    VERSIONS,
    Flag,
    FlagRow,
    file_of,
    program,
    read_rows,
)
from pretrain.tools.migrate.translation import dialect_of

FACTS = {version.name: version for version in VERSIONS}
PROBE = Path(__file__).with_name("parser_probe.py")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for family in FAMILIES:
        if family == "mindspeed-llm":  # what it adds to Megatron-LM's flags is written by hand
            continue
        parser.add_argument(f"--{family}", required=True, metavar="CLONE", help="its git directory")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the tables are written")
    return parser.parse_args()


def flags_of(version, clone):
    """Return the flags of a version, with what its parser defines first in front."""
    pack = subprocess.run(
        ["git", "-C", clone, "archive", version.commit, ":(glob)**/*.py"], check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(pack)) as files:
            files.extractall(place, filter="data")
        environment = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME"}}
        answer = subprocess.run(
            [sys.executable, str(PROBE), place],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
            env=environment,
        ).stdout
    found = json.loads(answer.splitlines()[-1])
    if found["prefixes"] != version.prefixes:
        sys.exit(f"{version.name}: prefixes must be {found['prefixes']} in versions.tsv")
    return [to_flag(each) for each in found["flags"]]


def to_flag(found):
    return Flag(**(found | {"spellings": tuple(found["spellings"]), "choices": tuple(found["choices"])}))


def table(flags_by_version):
    """Return the lines of a table: each flag as the newest version of its family defines it.

    A flag whose default a recipe needs has a row for every default that it had. One that belongs to a group of which
    pretrain only knows the beginning, "moe_*", has none.
    """
    versions: dict[str, list[str]] = {}
    flags: dict[str, Flag] = {}
    newest: dict[tuple, Flag] = {}
    for version, found in flags_by_version.items():
        for flag in found:
            if flag.name not in FACTS[version].refused:
                newest[FACTS[version].family, flag.name, repr(flag.given)] = flag
    for version, found in flags_by_version.items():
        needs = dialect_of(program(version)).needs
        for own in found:
            if FACTS[version].dialect == "megatron" and not is_listed(own.name):
                continue
            flag = newest.get((FACTS[version].family, own.name, repr(own.given)), own)
            flag = replace(flag, default=own.default) if needs(flag.name) else flag
            flags[repr(flag)] = flag  # a flag with a list as its default has no hash
            versions.setdefault(repr(flag), []).append(version)
    rows = [FlagRow(flag, tuple(versions[identity])) for identity, flag in flags.items()]
    rows.sort(key=lambda row: row.flag.name)  # stable: versions, then each parser's order
    return ["\t".join(COLUMNS), *map(written_row, rows)]


def by_hand(version):
    """Return the flags that the present table has of a program whose parser cannot be built."""
    return [row.flag for row in read_rows(version.dialect) if version.name in row.versions]


def main():
    arguments = vars(read_arguments())
    by_dialect: dict[str, dict[str, list[Flag]]] = {}
    for version in VERSIONS:
        clone = arguments.get(version.family.replace("-", "_"))
        found = by_hand(version) if version.base else flags_of(version, clone)
        by_dialect.setdefault(version.dialect, {})[version.name] = found
        print(version.name, len(by_dialect[version.dialect][version.name]), file=sys.stderr)
    names = {flag.name for found in by_dialect["megatron"].values() for flag in found}
    names = {name for name in names if not is_listed(name) and group_of(name) is not None} | grouped()
    (arguments["output"] / GROUPED).write_text("".join(f"{name}\n" for name in sorted(names)), encoding="utf-8")
    for dialect, flags in by_dialect.items():
        (arguments["output"] / file_of(dialect)).write_text("\n".join(table(flags)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
