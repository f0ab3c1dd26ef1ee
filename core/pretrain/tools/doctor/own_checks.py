"""Runs the checks of one rank by itself."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint.checksums import Share, are_there, damage_in_share
from pretrain.checkpoint.starting_checkpoint import starting_directory
from pretrain.errors import BackendError, DataError, PretrainError
from pretrain.launch.start_checks import CHECKS
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Available
from pretrain.plugins.host import discovery
from pretrain.plugins.host.importing import load_plugin
from pretrain.plugins.host.manager import assemble, load
from pretrain.plugins.host.members import availability, environment, require_module, take_device
from pretrain.tools.doctor.finding import Finding, failed, found_by, guarded
from pretrain.tools.doctor.host_limits import examine_limits, examine_variables
from pretrain.tools.doctor.versions import examine_versions
from pretrain.training.rank_setup import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from pretrain.launch.start_checks import Start
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe

GPT2_VOCAB_SIZE = 50257  # entries of GPT-2's vocabulary; counted with while a recipe's tokenizer does not exist


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
            remedy = answer.remedy or "`pretrain backends` shows what can be used on this machine."
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
        from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

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
        found.append(Finding.ok("start", f"a run's own checks find nothing: {names}"))
    doing("files of the checkpoint")
    return found + guarded("checkpoint", partial(_content, start, world))


def _content(start: Start, world: World) -> Iterator[Finding]:
    directory = None
    with suppress(PretrainError):  # rank 0 has said so
        directory = starting_directory(start.recipe, start.run_dir, resume=start.resumes)
    if directory is None or not are_there(directory):
        return
    size = sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
    if size > _MOST * world.world_size:
        text = f"{directory}: {size / 1e9:,.0f} GB, too much to be read here"
        remedy = f"`pretrain checkpoint verify {directory}` reads it; a run does at its start."
        yield Finding.look("checkpoint", text, remedy)
    elif problem := damage_in_share(directory, Share(world.rank, world.world_size)):
        yield failed("checkpoint", PretrainError(f"{problem}\nStart from another checkpoint."))
    else:
        yield Finding.ok("checkpoint", f"{directory} is as it was written")
