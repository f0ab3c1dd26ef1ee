"""The schemas of torch_npu's operators, and the check of a call against them."""

from __future__ import annotations

from pathlib import Path

import torch

FILES = sorted((Path(__file__).parents[1] / "schemas").glob("torch_npu-*.txt"))
RELEASES = {
    path.stem: {schema.name: schema for schema in map(torch._C.parse_schema, path.read_text().splitlines())}
    for path in FILES
}
"""Release -> operator -> schema."""


def bind(release, name, arguments, options):
    """Return the arguments by name, defaults filled in; raise TypeError where the release has no such call."""
    schema = RELEASES[release].get(name)
    if schema is None:
        raise TypeError(f"{release} has no {name}")
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    if len(arguments) > len(positional):
        raise TypeError(f"{release}: {name} takes {len(positional)} positional arguments, got {len(arguments)}")
    given = dict(zip((argument.name for argument in positional), arguments, strict=False))
    twice = given.keys() & options.keys()
    unknown = options.keys() - {argument.name for argument in schema.arguments}
    if twice or unknown:
        raise TypeError(f"{release}: {name} got {sorted(twice)} twice, and does not know {sorted(unknown)}")
    given |= options
    for argument in schema.arguments:
        if argument.name not in given and not argument.has_default_value():
            raise TypeError(f"{release}: {name} lacks {argument.name}")
        value = given.setdefault(argument.name, argument.default_value if argument.has_default_value() else None)
        if not _fits(value, str(argument.type)):
            raise TypeError(f"{release}: {name} got {argument.name}={value!r} for {argument.type}")
    return given


def _fits(value, kind):
    """Return whether a value is of a schema's type."""
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind.removeprefix("Optional[").removesuffix("]"))
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        return isinstance(value, list | tuple) and all(_fits(each, inner) for each in value)
    kinds = {"Tensor": torch.Tensor, "int": int, "float": float, "bool": bool, "str": str, "number": int | float}
    if isinstance(value, bool):
        return kind == "bool"
    return isinstance(value, kinds[kind]) or (kind == "float" and isinstance(value, int))
