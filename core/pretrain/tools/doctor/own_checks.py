"""Runs the checks of one rank by itself."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pretrain.checkpoint.checksums import Share, are_there, damage_in_share
from pretrain.checkpoint.starting_checkpoint import starting_directory
from pretrain.errors import DataError, PretrainError
from pretrain.launch.start_checks import CHECKS
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Available
from pretrain.plugins.host.members import availability, environment, require_module, take_device
from pretrain.tools.doctor.finding import Finding, Verdict, failed, found_by, guarded
from pretrain.tools.doctor.host_limits import examine_limits, examine_variables
from pretrain.tools.doctor.versions import examine_versions
from pretrain.training.rank_setup import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import torch

    from pretrain.launch.start_checks import Start
    from pretrain.launch.world import World
    from pretrain.plugins.host.manager import Plugins
    from pretrain.recipe import Recipe


GPT2_VOCAB_SIZE = 50257
"""Entries of GPT-2's vocabulary; counted with while a recipe's tokenizer does not exist."""


@dataclass(slots=True)
class OwnChecks:
    """Checks of one rank: software, environment, limits, device, kernels.

    Attributes:
        recipe: that is to be trained.
        plugins: the loaded backend, whose device need not be there.
        world: this rank's place.
        doing: told what is checked next.
        device: of this rank, once it was found.
        findings: of the checks so far.
        kernels: operation -> kernel that a training takes, and its provider, once they are chosen.
    """

    recipe: Recipe
    plugins: Plugins
    world: World
    doing: Callable[[str], None]
    device: torch.device | None = None
    findings: list[Finding] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        """Run all checks; without a device those that need none."""
        given = dict(os.environ)  # the backend's own variables are not the user's
        uses_deepspeed = self.recipe.engine.name == "deepspeed"
        self._check("device", self._device)
        self._check("versions", lambda: examine_versions(self.plugins, uses_deepspeed=uses_deepspeed))
        self._check("environment", lambda: self._variables(given))
        self._check("limits", lambda: examine_limits(self.recipe, self.world))
        if self.device is not None:
            self._check("requirements", self._requirements)
            self._check("device", partial(self._speed_and_kernels, self.device))

    def _check(self, name: str, call: Callable[[], Iterable[Finding]]) -> None:
        self.doing(name)
        self.findings += guarded(name, call)

    def _device(self) -> Iterator[Finding]:
        """Make this rank's device the current one, as a training does."""
        for name, value in environment(self.plugins, self.recipe).items():
            os.environ.setdefault(name, value)
        answer = availability(self.plugins)
        if not isinstance(answer, Available):
            text = f"{self.plugins.label} has no usable device: {answer.reason}"
            remedy = answer.remedy or "`pretrain backends` shows what can be used on this machine."
            yield Finding(check="device", verdict=Verdict.WRONG, text=text, remedy=remedy)
            return
        require_module(self.plugins)
        self.device = take_device(self.plugins, self.world.local_rank)
        text = self.plugins.backend.device_name() or answer.detail or str(self.device)
        yield Finding(check="device", verdict=Verdict.OK, text=f"{text}; {self.plugins.label}")

    def _variables(self, given: Mapping[str, str]) -> Iterator[Finding]:
        return examine_variables(self.plugins.backend, given, self.world.local_world_size)

    def _requirements(self) -> Iterator[Finding]:
        """Yield nothing where the device can do what the recipe asks; each of the calls raises otherwise."""
        for require in REQUIREMENTS:
            yield from found_by("device", partial(require, self.plugins, self.recipe))

    def _speed_and_kernels(self, device: torch.device) -> Iterator[Finding]:
        from pretrain.tools.doctor.device_speed import (  # noqa: PLC0415  not without a device
            MatmulSpeed,
            examine_memory,
            examine_speed,
            free_memory,
            usual_flops,
        )
        from pretrain.tools.doctor.kernels import Bench, examine_kernels  # noqa: PLC0415
        from pretrain.tools.doctor.trials import ShapeLimits  # noqa: PLC0415

        yield from examine_memory(device)
        self.doing("matmul")
        speed = MatmulSpeed(device, compute_dtype(self.recipe))
        yield from examine_speed(speed, self.plugins.backend)
        limits = ShapeLimits.of(usual_flops(speed, device), free_memory(device)[0], self._sharers())
        bench = Bench(
            recipe=self.recipe,
            plugins=self.plugins,
            device=device,
            limits=limits,
            vocab_size=self._vocab_size(),
            doing=self.doing,
            chosen=self.kernels,
        )
        yield from guarded("kernels", partial(examine_kernels, bench))

    def _sharers(self) -> int:
        """Return the number of ranks that share the memory of this rank's device: one where each has its own."""
        return self.world.local_world_size if self.plugins.backend.device_count() is None else 1

    def _vocab_size(self) -> int:
        """Return the tokenizer's number of entries, or a likely one where its files are not there yet."""
        from pretrain.data.tokenizers import load_tokenizer  # noqa: PLC0415

        try:
            return load_tokenizer(self.recipe.tokenizer).vocab_size
        except DataError:  # the check of the files says so
            return self.recipe.tokenizer.vocab_size or GPT2_VOCAB_SIZE


_MOST = 4 << 30
"""Bytes of a checkpoint that a rank reads: some seconds of most disks."""


def examine_start(start: Start, world: World, doing: Callable[[str], None]) -> list[Finding]:
    """Return the findings of `CHECKS` on rank 0, and on every rank those of its share of the checkpoint's files.

    Args:
        start: the run that would start.
        world: this rank's place.
        doing: told what is checked next.
    """
    found: list[Finding] = []
    for check in CHECKS if world.rank == 0 else ():
        doing(check.name)
        found += found_by(check.name, partial(check.look, start))
    if world.rank == 0 and not found:
        names = ", ".join(check.name for check in CHECKS)
        found.append(Finding(check="start", verdict=Verdict.OK, text=f"a run's own checks find nothing: {names}"))
    doing("files of the checkpoint")
    return found + guarded("checkpoint", partial(_content, start, world))


def _content(start: Start, world: World) -> Iterator[Finding]:
    """Compare the files of the checkpoint that the run starts from with their checksums."""
    directory = None
    with suppress(PretrainError):  # rank 0 has said so
        directory = starting_directory(start.recipe, start.run_dir, resume=start.goes_on)
    if directory is None or not are_there(directory):
        return
    size = _size(directory)
    if size > _MOST * world.world_size:
        text = f"{directory}: {size / 1e9:,.0f} GB, too much to be read here"
        remedy = f"`pretrain checkpoint verify {directory}` reads it; a run does at its start."
        yield Finding(check="checkpoint", verdict=Verdict.LOOK, text=text, remedy=remedy)
    elif problem := damage_in_share(directory, Share(world.rank, world.world_size)):
        yield failed("checkpoint", PretrainError(f"{problem}\nStart from another checkpoint."))
    else:
        yield Finding(check="checkpoint", verdict=Verdict.OK, text=f"{directory} is as it was written")


def _size(directory: Path) -> int:
    return sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
