"""Agreement of the ranks on what they train: recipe, versions and content of the data, before the first step."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain import __version__
from pretrain.errors import DataError, RecipeError
from pretrain.launch.rank0_broadcast import HOST, gathered_on_rank0, rank0_decides, tell_rank0
from pretrain.plugins.host.discovery import find_backend, installed_plugins
from pretrain.plugins.installed import version
from pretrain.report.plain_text import rank_names
from pretrain.stores.stored_inputs import local_prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pretrain.launch.world import World
    from pretrain.recipe import Recipe

OF_HOST = frozenset(
    {
        *("data.path", "data.blend.path", "data.cache_path"),
        *("data.train_data_path.path", "data.valid_data_path.path", "data.test_data_path.path"),
        *("tokenizer.file", "tokenizer.vocab_file", "tokenizer.merge_file"),
        *("engine.zero.offload_param.nvme_path", "engine.zero.offload_optimizer.nvme_path"),
    }
)
"""Keys that may differ: a host may mount its inputs elsewhere, whose content counts, and has disks of its own."""

_SHOWN = 8  # most differences in a message
_HEAD = "the ranks do not have the same recipe, data and software."
_REMEDY = "Give every node the same recipe and --set options, files and versions, and start again."
_ABSENT = "absent"
_DIGITS = 16  # digits of a hash that are compared: 64 bits


def require_one_recipe(
    recipe: Recipe, backend_name: str, world: World, check: Callable[[], None], *, reads_data: bool = True
) -> None:
    """Compare what the ranks train or evaluate; every rank calls it once per process, in each attempt again."""
    # Rank 0 compares about 6 KB of each rank, makes its own `check`, and raises for all; the others leave by
    # SystemExit. One rank of a node reads at most 6 MiB of each token file.
    tell_rank0(HOST, socket.gethostname(), world)  # the files may take long
    own = stated(recipe, backend_name, reads_files=world.local_rank == 0, reads_data=reads_data)
    tell_rank0("recipe", json.dumps(own), world)
    patience = timedelta(minutes=recipe.parallel.distributed_timeout_minutes)

    def decide() -> str:
        told = gathered_on_rank0("recipe", world, patience)
        if difference := differing({rank: json.loads(each) for rank, each in enumerate(told)}):
            raise RecipeError(difference)
        check()
        return ""

    rank0_decides(decide, world, about="the recipe")


def stated(recipe: Recipe, backend_name: str, *, reads_files: bool, reads_data: bool = True) -> dict[str, Any]:
    """Return this rank's host, and what must be the same on all ranks, by key; values that JSON knows."""
    return {
        "host": socket.gethostname(),
        "common": _keys(recipe.model_dump(mode="json")) | _versions(recipe, backend_name),
        "files": _files(recipe, reads_data=reads_data) if reads_files else {},
    }


def differing(statements: Mapping[int, Mapping[str, Any]]) -> str:
    """Return what differs from the first rank, with keys, hosts and both values; "" where nothing does."""
    lowest = min(statements)
    first = statements[lowest]
    files: Mapping[str, str] = first["files"] or next(
        (each["files"] for each in statements.values() if each["files"]), {}
    )
    expected = first["common"] | files
    ranks: dict[tuple[str, str, str], list[int]] = {}
    for rank, each in sorted(statements.items()):
        theirs = each["common"] | (each["files"] or files)
        for key in {**expected, **theirs}:
            if theirs.get(key, _ABSENT) != expected.get(key, _ABSENT):
                ranks.setdefault((key, each["host"], _shown(theirs, key)), []).append(rank)
    if not ranks:
        return ""
    lines = [
        f"  {key}: {value} on {host} ({rank_names(those)}), {_shown(expected, key)} on {first['host']} (rank {lowest})"
        for (key, host, value), those in ranks.items()
    ]
    more = [f"  ... and {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
    return "\n".join((_HEAD, *lines[:_SHOWN], *more, _REMEDY))


def _shown(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key, _ABSENT)
    return value if isinstance(value, str) else json.dumps(value)


def _keys(section: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section.items():
        path = f"{prefix}{name}"
        if path in OF_HOST:
            continue
        if isinstance(value, dict):
            found |= _keys(value, f"{path}.")
        elif isinstance(value, list) and all(isinstance(part, dict) for part in value):
            found[path] = [_keys(part, f"{path}.") for part in value]
        else:
            found[path] = value
    return found


def _versions(recipe: Recipe, backend_name: str) -> dict[str, str]:
    names = ("torch", "megatron-core", *(["deepspeed"] if recipe.engine.name == "deepspeed" else []))
    plugins = {f"plugin {plugin.name}": plugin.provider for plugin in installed_plugins()}
    backend = {"--backend": f"{backend_name} ({find_backend(backend_name).provider})"}
    return {"pretrain": __version__, **{name: version(name) for name in names}, **backend, **plugins}


def _files(recipe: Recipe, *, reads_data: bool) -> dict[str, str]:
    """Return a hash of the tokenizer's files and of each pair of token files, or why one cannot be read."""
    from pretrain.data.token_files.reading import TokenFile, for_each  # noqa: PLC0415  --help needs none of it
    from pretrain.data.tokenizers.tokenizer import fingerprint_of  # noqa: PLC0415

    section = recipe.tokenizer
    files = map(Path, section.files)
    prefixes = recipe.data.token_files if reads_data else []
    found = {"tokenizer": _content(fingerprint_of, section.type, *files)}

    def content(prefix: str) -> str:
        return _content(lambda path: TokenFile.open(local_prefix(path)).identity(), prefix)

    each = dict.fromkeys(prefixes)
    contents = dict(zip(each, for_each(each, content), strict=True))
    for number, prefix in enumerate(prefixes, start=1):
        found[f"token files {number} of {len(prefixes)}"] = contents[prefix]
    return found


def _content(look: Callable[..., str], *arguments: object) -> str:
    """Return a hash, or why a file cannot be read here; another host may have it."""
    try:
        return f"content {look(*arguments)[:_DIGITS]}"
    except (DataError, OSError) as error:
        return str(error).splitlines()[0]
