"""Entry point of the doctor on a rank: its own checks, those between ranks, the output."""

from __future__ import annotations

import os
import time
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pretrain.checkpoint.checksums import Share, are_there, damage_in_share
from pretrain.checkpoint.starting_checkpoint import starting_directory
from pretrain.errors import BackendError, DataError, PretrainError
from pretrain.exit_codes import ExitCode
from pretrain.launch.processes.rank import claim_report, note_end, note_report
from pretrain.launch.start_checks import CHECKS, Start
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Available
from pretrain.plugins.host import discovery
from pretrain.plugins.host.discovery import load_plugin
from pretrain.plugins.host.manager import assemble, load
from pretrain.plugins.host.members import availability, environment, require_module, take_device
from pretrain.tools.doctor.finding import Finding, as_text, failed, found_by, guarded, is_ok
from pretrain.tools.doctor.finding import as_json as json_of
from pretrain.tools.doctor.host import examine_limits, examine_variables, examine_versions
from pretrain.tools.doctor.ranks.checkpoint_folder import FolderProbe, folder_steps
from pretrain.tools.doctor.ranks.links import SIZES, link_step
from pretrain.tools.doctor.ranks.status_board import CallThread, StatusBoard
from pretrain.tools.doctor.ranks.step_sequence import StepSequence
from pretrain.tools.doctor.ranks.steps import clock_step, cores_step, own_step, read_step, recipe_step, speed_step
from pretrain.training.rank_setup import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import torch

    from pretrain.launch.run_directory import Resume
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.ranks.step_sequence import ExaminationStep, RankOutcome

NOTE = "none given: tests the kernels of GPT-2 345M in bf16, and checks no token files, tokenizer or checkpoint folder"
TIMEOUT = 30.0  # seconds after which a rank that says nothing is named


def examine(
    recipe: Recipe,
    *,
    backend_name: str,
    world: World,
    run_dir: str | None = None,
    resume: Resume = "no",
    is_example: bool,
    as_json: bool,
    timeout: float = TIMEOUT,
) -> None:
    """Examine this rank, and with the others the links between them; the reporting rank prints. Called once."""
    # SystemExit 1 is raised on the rank that reports where a finding is wrong.
    board = StatusBoard(world, timeout)
    start = Start(recipe=recipe, run_dir=None if run_dir is None else Path(run_dir), resume=resume)
    own = OwnChecks(recipe, backend_name, world, board.doing)
    if is_example:
        own.findings.append(Finding.ok("recipe", NOTE))

    def check() -> None:
        if not is_example:
            own.findings += examine_start(start, world, board.doing)
        own.run()

    unended = run_watched(check, board)
    device = None if unended else own.device  # with a check that hangs no further call of the device is tried
    found, has_device = [*own.findings, *unended], device is not None
    first = own_step(found, has_device=has_device, world_size=world.world_size, kernels=own.kernels)
    files = None if is_example else start
    outcome = examine_between(first, board, own.plugins, device, recipe, start=files, backend_name=backend_name)
    code = _report(outcome, board, as_json=as_json) if outcome.reports and claim_report() else ExitCode.COMPLETE
    if unended or outcome.stuck:
        if not code:
            note_end()
        outcome.leave(code)
    if code:
        raise SystemExit(code)


def _report(outcome: RankOutcome, board: StatusBoard, *, as_json: bool) -> int:
    click.echo(json_of(outcome.findings) if as_json else as_text(outcome.findings))
    if is_ok(outcome.findings):
        return ExitCode.COMPLETE
    with suppress(OSError):  # then the launcher shows this rank's exit code too
        note_report(board.world.rank)
    return ExitCode.FAILURE


_PERIOD = 0.1


def run_watched(call: Callable[[], None], board: StatusBoard) -> list[Finding]:
    """Run a call in a thread; return a finding if it reports no progress for the board's timeout."""
    # It says what it does by `board.doing` before anything that may take seconds. Whatever it raises is raised here,
    # but for the end of the process that a library asked for: a finding.
    future = CallThread(None).start(call)
    while not wait([future], _PERIOD).done:
        board.beat()
        if time.monotonic() - board.spoken > board.timeout:
            text = f"{board.words} did not finish within {board.timeout:g} s; the checks after it were skipped"
            remedy = "A device, a driver or a file system hangs; `py-spy dump --pid` shows which."
            return [Finding.wrong(board.words, text, remedy)]
    error = future.exception()
    if isinstance(error, SystemExit):
        return [failed(board.words, error)]
    if error is not None:
        raise error
    return []


_REMOVAL = 5.0  # seconds that the removal of files in the checkpoint folder may take


def examine_between(
    own: ExaminationStep,
    board: StatusBoard,
    plugins: Plugins | None,
    device: torch.device | None,
    recipe: Recipe,
    *,
    start: Start | None,
    backend_name: str,
    sizes: Sequence[int] = SIZES,
) -> RankOutcome:
    """Compare the ranks, and measure the links between them; every rank calls it after its own checks."""
    # A rank that does nothing new for `board.timeout` seconds is named with what it did last, and the command ends. A
    # rank without a `device` leaves out links and speed; without `start` neither data nor checkpoint folder is
    # examined.
    is_several = board.world.world_size > 1
    probe = None if start is None else FolderProbe(start, board.world.rank)
    steps = [own, cores_step(recipe)]
    if probe is not None:
        steps += [recipe_step(recipe, backend_name, board)] if is_several else []
        steps += [read_step(recipe, board), *folder_steps(recipe, board, probe)]
    if is_several:
        speed = speed_step(board, device, compute_dtype(recipe))
        steps += [clock_step(board), speed, link_step(recipe, plugins, board, device, sizes)]
    try:
        outcome = StepSequence(board, steps, device).run()
        return replace(outcome, stuck=outcome.stuck or is_several)
    finally:
        if probe is not None and probe.run:
            with suppress(TimeoutError):  # the file system may have stopped to answer
                CallThread(None).start(probe.remove).result(_REMOVAL)


@dataclass(slots=True)
class OwnChecks:
    """Checks of one rank: software, environment, limits, device, kernels; and what they have found by now."""

    recipe: Recipe
    backend_name: str
    world: World
    doing: Callable[[str], None]  # told what is checked next
    plugins: Plugins | None = None
    device: torch.device | None = None
    findings: list[Finding] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)  # operation -> kernel that a training takes, and its provider

    def run(self) -> None:
        """Run all checks; without a device those that need none."""
        self.doing("import of the backend")
        self.plugins = plugins = self._load()
        given = dict(os.environ)  # the backend's own variables are not the user's
        uses_deepspeed, ranks = self.recipe.engine.name == "deepspeed", self.world.local_world_size
        self._check("device", partial(self._device, plugins))
        self._check("versions", partial(examine_versions, plugins, uses_deepspeed=uses_deepspeed))
        self._check("environment", partial(examine_variables, plugins.backend, given, ranks))
        self._check("limits", partial(examine_limits, self.recipe, self.world))
        if self.device is not None:
            self.doing("requirements")
            for require in REQUIREMENTS:  # each raises what the device cannot do of what the recipe asks
                self.findings += found_by("device", partial(require, plugins, self.recipe))
            self._check("device", partial(self._speed_and_kernels, plugins, self.device))

    def _check(self, name: str, call: Callable[[], Iterable[Finding]]) -> None:
        self.doing(name)
        self.findings += guarded(name, call)

    def _load(self) -> Plugins:
        """Return the plugins; where one that brings kernels is broken, those without them."""
        try:
            return load(self.backend_name)
        except BackendError as error:
            installed = (discovery.find_backend(self.backend_name), discovery.REFERENCE)
            backend, reference = (load_plugin(each) for each in installed)
            self.findings.append(failed("plugins", error))
            return assemble([], backend, reference)

    def _device(self, plugins: Plugins) -> Iterator[Finding]:
        for name, value in environment(plugins, self.recipe).items():
            os.environ.setdefault(name, value)
        answer = availability(plugins)
        if not isinstance(answer, Available):
            remedy = answer.remedy or "`pretrain backends` shows what this machine can use."
            yield Finding.wrong("device", f"{plugins.label} has no usable device: {answer.reason}", remedy)
            return
        require_module(plugins)
        self.device = take_device(plugins, self.world.local_rank)
        text = plugins.backend.device_name() or answer.detail or str(self.device)
        yield Finding.ok("device", f"{text}; {plugins.label}")

    def _speed_and_kernels(self, plugins: Plugins, device: torch.device) -> Iterator[Finding]:
        from pretrain.tools.doctor import device_speed  # noqa: PLC0415  not without a device
        from pretrain.tools.doctor.kernels import Bench, examine_kernels  # noqa: PLC0415
        from pretrain.tools.doctor.trials import ShapeLimits  # noqa: PLC0415

        yield from device_speed.examine_memory(device)
        self.doing("matmul")
        speed = device_speed.MatmulSpeed(device, compute_dtype(self.recipe))
        yield from device_speed.examine_speed(speed, plugins.backend)
        sharers = self.world.local_world_size if plugins.backend.device_count() is None else 1
        free, _ = device_speed.free_memory(device)
        bench = Bench(
            recipe=self.recipe,
            plugins=plugins,
            device=device,
            limits=ShapeLimits.of(device_speed.usual_flops(speed, device), free, sharers),
            vocab_size=self._vocab_size(),
            doing=self.doing,
            chosen=self.kernels,
        )
        yield from guarded("kernels", partial(examine_kernels, bench))

    def _vocab_size(self) -> int:
        from pretrain.data.tokenizers.load import GPT2_VOCAB_SIZE, load_tokenizer  # noqa: PLC0415

        try:
            return load_tokenizer(self.recipe.tokenizer).vocab_size
        except DataError:  # the check of the files says so
            return self.recipe.tokenizer.vocab_size or GPT2_VOCAB_SIZE


_MOST = 4 << 30  # bytes of a checkpoint that a rank reads: some seconds of most disks


def examine_start(start: Start, world: World, doing: Callable[[str], None]) -> list[Finding]:
    """Return the findings of `CHECKS` on rank 0, and on every rank those of its share of the checkpoint's files."""
    found: list[Finding] = []
    for check in CHECKS if world.rank == 0 else ():
        doing(check.name)
        found += found_by(check.name, partial(check.look, start))
    if world.rank == 0 and not found:
        names = ", ".join(check.name for check in CHECKS)
        found.append(Finding.ok("start", f"the checks at a run's start pass: {names}"))
    doing("files of the checkpoint")
    return found + guarded("checkpoint", partial(_content, start, world))


def _content(start: Start, world: World) -> Iterator[Finding]:
    found = None
    with suppress(PretrainError):  # rank 0 has said so
        found = starting_directory(start.recipe, start.run_dir, resume=start.resumes)
    if found is None or not are_there(found.path):
        return
    directory = found.path
    size = sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
    if size > _MOST * world.world_size:
        text = f"{directory}: {size / 1e9:,.0f} GB, too large to be read here"
        remedy = f"`pretrain checkpoint verify {directory}` checks it; so does a run at its start."
        yield Finding.look("checkpoint", text, remedy)
    elif problem := damage_in_share(directory, Share(world.rank, world.world_size)):
        yield failed("checkpoint", PretrainError(f"{problem}\nStart from another checkpoint."))
    else:
        yield Finding.ok("checkpoint", f"{directory} is intact")
