"""Write the tables of flags in core/pretrain/tools/migrate/programs again, from clones of the four programs.

Each version's own argument parser is built by its own code (parser_probe.py), nothing is read off by hand; GPT-NeoX's
keys are the fields of its dataclasses. To add a version, add it to VERSIONS in versions.py and run this again.

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
from pathlib import Path

from pretrain.tools.migrate.programs import COLUMNS, FAMILIES, VERSIONS, Flag, Row, file_of, written_row

PROBE = Path(__file__).with_name("parser_probe.py")


def read_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for family in FAMILIES:
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
        sys.exit(f"{version.name}: prefixes must be {found['prefixes']} in VERSIONS")
    return [to_flag(each) for each in found["flags"]]


def to_flag(found):
    return Flag(**(found | {"spellings": tuple(found["spellings"]), "choices": tuple(found["choices"])}))


def table(flags_by_version):
    """Return the lines of a table: equal flags of several versions are one."""
    versions: dict[str, list[str]] = {}
    flags: dict[str, Flag] = {}
    for version, found in flags_by_version.items():
        for flag in found:
            identity = repr(flag)  # a flag with a list as its default has no hash
            flags[identity] = flag
            versions.setdefault(identity, []).append(version)
    rows = [Row(flag, tuple(versions[identity])) for identity, flag in flags.items()]
    rows.sort(key=lambda row: row.flag.name)  # stable: versions, then each parser's order
    return ["\t".join(COLUMNS), *map(written_row, rows)]


def main():
    arguments = vars(read_arguments())
    by_dialect: dict[str, dict[str, list[Flag]]] = {}
    for version in VERSIONS:
        clone = arguments[version.family.replace("-", "_")]
        by_dialect.setdefault(version.dialect, {})[version.name] = flags_of(version, clone)
        print(version.name, len(by_dialect[version.dialect][version.name]), file=sys.stderr)
    for dialect, flags in by_dialect.items():
        (arguments["output"] / file_of(dialect)).write_text("\n".join(table(flags)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
