"""Checks of one rank, in their order."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pretrain.errors import DataError
from pretrain.model.requests import compute_dtype
from pretrain.plugins.backend import Available
from pretrain.plugins.host.members import availability, environment, require_module, take_device
from pretrain.tools.doctor.effective_variables import examine_variables
from pretrain.tools.doctor.finding import Finding, Verdict
from pretrain.tools.doctor.fitting_versions import examine_versions
from pretrain.tools.doctor.guard import found_by, guarded
from pretrain.tools.doctor.limits import examine_limits
from pretrain.training.rank_setup import REQUIREMENTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import torch

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
        from pretrain.tools.doctor.kernels.all_kernels import Bench, examine_kernels  # noqa: PLC0415
        from pretrain.tools.doctor.kernels.room import Room  # noqa: PLC0415

        yield from examine_memory(device)
        self.doing("matmul")
        speed = MatmulSpeed(device, compute_dtype(self.recipe))
        yield from examine_speed(speed, self.plugins.backend)
        room = Room.of(usual_flops(speed, device), free_memory(device)[0], self._sharers())
        bench = Bench(
            recipe=self.recipe,
            plugins=self.plugins,
            device=device,
            room=room,
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
