"""Compares how many of the kit's requests each kernel takes with a table in a file.

A kernel that begins to decline a dtype loses the tests of that dtype, and none of them fails. Against this one line in
a test file that has a BACKEND:

    from pretrain.conformance.offers import TestOffers

The table of `test_offers.py` is `test_offers.yml`, beside it. Requests are answered, no kernel is built. A backend that
knows devices by name (`Backend.named`) is asked about devices that are not there:

    DEVICES = ("NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3")
"""

from __future__ import annotations

import difflib
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
import yaml

from pretrain.conformance.cases import DTYPE_NAMES, UNLABELLED
from pretrain.conformance.catalogue import CATALOGUE
from pretrain.conformance.subject import answers, load_subject, placed
from pretrain.plugins.backend import Unavailable
from pretrain.plugins.host.members import availability, named
from pretrain.plugins.negotiation.choosing import ask

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from pretrain.conformance.subject import Answers
    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.requests import Request

Row = dict[str, Any]
Table = dict[str, dict[str, Row | list[Row]]]
"""Operation -> kernel -> its row; of named devices one row for all of which it is the same."""

WRITE = "PRETRAIN_WRITE_OFFERS"
"""Environment variable: where it is set, the table is written instead of compared."""

HEAD = f"""\
# Requests of pretrain's conformance kit that each kernel takes, of all those of its operation, by dtype.
# never: values of a request's field with which the kernel takes none. absent: not on this machine or device.
# The test beside it writes this file under {WRITE}=1.
"""


class TestOffers:
    """Kernels that take other requests than the table says."""

    def test_are_those_of_the_table(self, request: pytest.FixtureRequest) -> None:
        """Every kernel of the backend, of installed kernel plugins and of the reference, on every device of DEVICES."""
        found = {
            device: [each for requests in CATALOGUE.values() for each in _on(device, plugins, requests)]
            for device, plugins in _devices(request.module).items()
        }
        table = _table(found)
        path = Path(request.path).with_suffix(".yml")
        if os.environ.get(WRITE, "0") not in {"", "0"}:
            path.write_text(HEAD + _text(table))
            pytest.skip(f"{path.name} was written, not compared")
        command = f"{WRITE}=1 python -m pytest '{request.node.nodeid}'"
        if not path.exists():
            pytest.fail(f"the table {path} does not exist.\nWrite it: {command}", pytrace=False)
        changes = _changes(yaml.safe_load(path.read_text()), table, found)
        if changes:
            lines = [f"Kernels take other requests than {path.name} says.", *changes]
            lines.append(f"If this is intended, write the table again: {command}")
            pytest.fail("\n".join(lines), pytrace=False)


def _devices(module: ModuleType) -> dict[str, Plugins]:
    """Return the plugins for each named device, or for the device here under the name ""."""
    subject = load_subject(module.BACKEND)
    names = getattr(module, "DEVICES", ())
    if names:
        return {name: named(subject.plugins, name) for name in names}
    answer = availability(subject.plugins)
    if isinstance(answer, Unavailable):
        pytest.skip(f"{subject.plugins.label}: {answer.reason}")
    assert subject.device  # a plugin may know more of its device once it is there
    return {"": subject.plugins}


def _on(device: str, plugins: Plugins, requests: Sequence[Request]) -> list[Answers]:
    """Return each kernel's answers on the device of a name; "": on that of this machine."""
    return answers(plugins, requests, lambda request: ask(plugins, placed(plugins, request, device)))


def _table(found: dict[str, list[Answers]]) -> Table:
    table: Table = {}
    for device, listed in found.items():
        for each in listed:
            kernels, row = table.setdefault(each.kernel.operation, {}), _row(each)
            if not device:
                kernels[str(each.kernel)] = row
                continue
            rows = cast("list[Row]", kernels.setdefault(str(each.kernel), []))
            same = next((other for other in rows if {**other, "devices": []} == {"devices": [], **row}), None)
            if same is None:
                rows.append({"devices": [device], **row})
            else:
                same["devices"].append(device)
    return table


def _row(of_kernel: Answers) -> Row:
    if of_kernel.absent:
        return {"takes": "absent"}
    requests, taken = CATALOGUE[of_kernel.kernel.operation], set(of_kernel.taken)
    takes, never = {}, {}
    for dtype, name in DTYPE_NAMES.items():
        if among := [request for request in requests if str(request.dtype) == dtype]:
            takes[name] = f"{sum(request in taken for request in among)} of {len(among)}"
    for name in (field.name for field in fields(requests[0]) if field.name not in UNLABELLED):
        values = dict.fromkeys(getattr(request, name) for request in requests)
        met = {getattr(request, name) for request in taken}
        if met and len(met) < len(values):
            never[name] = [_plain(value) for value in values if value not in met]
    return {"takes": takes} | ({"never": never} if never else {})


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[str(value)]
    return str(value) if isinstance(value, str) else value


def _text(table: Any) -> str:
    text: str = yaml.safe_dump(table, sort_keys=False, default_flow_style=None, width=10_000)
    return text


def _changes(kept: Table, table: Table, found: dict[str, list[Answers]]) -> list[str]:
    """Return the lines that differ, by kernel, each with the reasons for which it declines now."""
    changes = []
    for operation in dict.fromkeys([*table, *kept]):
        before, now = (each.get(operation, {}) for each in (kept, table))
        for kernel in dict.fromkeys([*now, *before]):
            if before.get(kernel) == now.get(kernel):
                continue
            old, new = (_text({kernel: rows[kernel]}).splitlines() if kernel in rows else [] for rows in (before, now))
            changes += [f"{operation}:", *(line for line in difflib.ndiff(old, new) if line[0] != "?")]
            changes += _reasons(operation, kernel, found)
    return changes


def _reasons(operation: str, kernel: str, found: dict[str, list[Answers]]) -> list[str]:
    """Return a line for each reason of a kernel and the number of requests that it declines, on whichever device."""
    listed = [each for of_device in found.values() for each in of_device]
    of_kernel = [each for each in listed if (each.kernel.operation, str(each.kernel)) == (operation, kernel)]
    return list(dict.fromkeys(line for each in of_kernel for line in each.summary().splitlines()[1:]))
