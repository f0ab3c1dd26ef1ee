"""Tracing of a layout's stages, each in a process of its own: a process has one bridge, and one world at a time."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pretrain.errors import BackendError, PretrainError
from pretrain.machine import available_cores
from pretrain.tools.plan.trace.stages import differing_stages, first_rank, layers_of, planned_micro_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.trace.rank_trace import RankTrace

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """Subject of a trace, as plain values that another process understands.

    Attributes:
        recipe: what is planned.
        backend: value of `--backend`.
        device: the name of a device that need not be there; None: the one here.
        layout: of the ranks.
        vocab_size: entries of the tokenizer, before padding.
        memory: bytes that a device has for tensors; None where that is not known.
    """

    recipe: Recipe
    backend: str
    device: str | None
    layout: Layout
    vocab_size: int
    memory: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedStage:
    """Result of a trace.

    Attributes:
        plan: of the stage; its "process groups" are still missing.
        kernels: the negotiated ones.
        notices: lines for the user.
    """

    plan: StagePlan
    kernels: KernelTable
    notices: tuple[str, ...]


def trace_stages(subject: Subject, stages: Sequence[int] | None = None) -> list[TracedStage]:
    """Trace the stages that differ, on as many processes as there are cores.

    Args:
        subject: recipe, device and layout.
        stages: those to trace; None for those that differ.

    Raises:
        PretrainError: the engine cannot be built: no allowed kernel, a broken plugin.
    """
    chosen = list(differing_stages(subject.layout) if stages is None else stages)
    return in_processes(trace_stage, [subject] * len(chosen), chosen)


def trace_stage(subject: Subject, stage: int) -> TracedStage:
    """Trace one stage, in a process that plans for one kind of device and never trains.

    Raises:
        PretrainError: as `trace_stages`.
    """
    recipe, layout = subject.recipe, subject.layout
    rank = first_rank(layout, stage)
    count = layout.num_microbatches(recipe.train.global_batch_size)
    micro_batches = planned_micro_batches(layout, stage, count)
    trace = trace_subject(subject, rank=rank, micro_batches=micro_batches, name=f"rank {rank}")
    from pretrain.tools.plan.trace.stage_of_trace import stage_of  # noqa: PLC0415  imports megatron.core: after the bridge

    plan = stage_of(trace, stage=stage, layers=layers_of(layout, stage), recipe=recipe, memory=subject.memory)
    return TracedStage(plan=plan, kernels=trace.kernels, notices=tuple(trace.notices))


def in_processes(function: Callable[..., Result], subjects: Sequence[Subject], *others: Sequence[Any]) -> list[Result]:
    """Call a function for each subject, on as many processes as there are cores.

    Args:
        function: of a module; it traces.
        subjects: first arguments.
        others: as many second arguments, third ones, and so on.

    Raises:
        BackendError: a process was killed.
        PretrainError: as the function.
    """
    # Forked: modules that this process has imported are there already. It must not have started threads.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(len(subjects), available_cores()), mp_context=context) as processes:
        try:
            return list(processes.map(function, subjects, *others))
        except BrokenProcessPool:
            msg = (
                "a process that traces the model was killed, probably for want of memory: a trace takes about 1 GB.\n"
                "Free some, or let fewer run at once: taskset -c 0 pretrain plan ..."
            )
            raise BackendError(msg) from None


def trace_subject(subject: Subject, *, rank: int, micro_batches: Sequence[int], name: str) -> RankTrace:
    """Trace one rank, in a process that plans for one kind of device and never trains.

    Args:
        subject: recipe, device and layout.
        rank: in the layout's world.
        micro_batches: of each step.
        name: of what is traced, in an error.

    Raises:
        PretrainError: the engine cannot be built: no allowed kernel, a broken plugin; or it cannot step.
    """
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # operations that are tried, and fail
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # DeepSpeed's alignment check
    plugins = install_for(subject)
    from pretrain.tools.plan.trace.rank_trace import trace_rank  # noqa: PLC0415  imports megatron.core: after the bridge

    try:
        return trace_rank(
            subject.recipe,
            plugins,
            rank=rank,
            world_size=subject.layout.world_size,
            vocab_size=subject.vocab_size,
            micro_batches=micro_batches,
        )
    except PretrainError:
        raise
    except Exception as error:
        msg = (
            f"{name} cannot be planned: {type(error).__name__}: {error}\n"
            "A kernel that cannot run on fake tensors needs a stand-in (Offer.fake): name another in the recipe, or "
            "report it to its author. PRETRAIN_TRACEBACK=1 shows where."
        )
        raise BackendError(msg) from error


def install_for(subject: Subject) -> Plugins:
    """Install the bridges for a plan in this process, which must not train; return the device's plugins."""
    from pretrain.bridge import megatron, planning  # noqa: PLC0415
    from pretrain.plugins.host.manager import load  # noqa: PLC0415
    from pretrain.plugins.host.members import named  # noqa: PLC0415
    from pretrain.tools.plan.trace.planned_device import PlannedDevice  # noqa: PLC0415

    plugins = load(subject.backend)
    if subject.device is not None:
        plugins = named(plugins, subject.device)
    megatron.install(PlannedDevice(plugins.backend), planned=True)
    planning.install()
    return plugins
