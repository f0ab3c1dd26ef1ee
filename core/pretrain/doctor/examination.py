"""The composition root of the doctor on one rank: its own checks, those between ranks, and their output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pretrain.doctor.example import NOTE
from pretrain.doctor.finding import Finding, Verdict
from pretrain.doctor.findings_text import as_json as json_of
from pretrain.doctor.findings_text import as_text, is_ok
from pretrain.doctor.guard import failed
from pretrain.doctor.kernel_choices import differing_choices, write_choices
from pretrain.doctor.own_checks import OwnChecks
from pretrain.doctor.ranks.between import examine_between
from pretrain.doctor.ranks.board import Board
from pretrain.errors import BackendError
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.host.manager import assemble, load

if TYPE_CHECKING:
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe

TIMEOUT = 30.0
"""Seconds after which a rank that says nothing is named."""


def examine(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    is_example: bool,
    as_json: bool,
    timeout: float = TIMEOUT,
) -> None:
    """Examine this rank and, with the others, what is between them; the rank that reports prints. Called once.

    Args:
        recipe: that is to be trained.
        backend_name: value of `--backend`.
        world: this rank's place.
        is_example: the user gave no recipe: its files are not looked at.
        as_json: print one JSON object instead of lines.
        timeout: seconds after which a rank that says nothing is named.

    Raises:
        SystemExit: 1, on the rank that reports, where a finding is wrong.
        BackendError: the backend cannot be imported.
    """
    board = Board(world, timeout)
    board.doing("import of the backend")
    plugins, findings = _plugins(backend_name)
    if is_example:
        findings.append(Finding(check="recipe", verdict=Verdict.OK, text=NOTE))
    own = OwnChecks(recipe, plugins, world, board.doing, findings=findings)
    own.run()
    write_choices(board, own.kernels)
    outcome = examine_between(
        None if is_example else recipe, plugins, world, own.device, own.findings, board=board, timeout=timeout
    )
    code = 0
    if outcome.reports:
        shown = [*outcome.findings, *differing_choices(board, world.world_size)]
        click.echo(json_of(shown) if as_json else as_text(shown))
        code = 0 if is_ok(shown) else 1
    if outcome.stuck:
        outcome.leave(code)
    if code:
        raise SystemExit(code)


def _plugins(backend_name: str) -> tuple[Plugins, list[Finding]]:
    """Return the plugins; where one that brings kernels is broken, those without them and a finding."""
    try:
        return load(backend_name), []
    except BackendError as error:
        backend, reference = (load_plugin(each) for each in (discovery.find_backend(backend_name), discovery.REFERENCE))
        return assemble([], backend, reference), [failed("plugins", error)]
