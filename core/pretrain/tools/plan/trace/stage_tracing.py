"""Traces a layout's stages, each in its own process: a process has one bridge, and one world at a time."""

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
from pretrain.recipe.layout import layers_with_experts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernel_table import KernelTable
    from pretrain.recipe import Recipe
    from pretrain.recipe.layout import Layout
    from pretrain.tools.plan.device import PlanDevice
    from pretrain.tools.plan.stage_plan import StagePlan
    from pretrain.tools.plan.trace.rank_trace import RankTrace

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceSubject:
    """What to trace in another process."""

    recipe: Recipe
    device: PlanDevice
    layout: Layout
    vocab_size: int  # entries of the tokenizer, before padding


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedStage:
    """Result of a trace."""

    plan: StagePlan
    kernels: KernelTable
    notices: tuple[str, ...]


def trace_stages(subject: TraceSubject) -> list[TracedStage]:
    """Trace the stages that differ, on as many processes as there are cores."""
    chosen = differing_stages(subject.layout, layers_with_experts(subject.recipe, subject.layout))
    return in_processes(trace_stage, [subject] * len(chosen), chosen)


def trace_stage(subject: TraceSubject, stage: int) -> TracedStage:
    """Trace one stage, in a process that plans for one kind of device and never trains."""
    recipe, device, layout = subject.recipe, subject.device, subject.layout
    rank = first_rank(layout, stage)
    count = layout.num_microbatches(recipe.train.global_batch_size)
    micro_batches = planned_micro_batches(layout, stage, count)
    trace = trace_subject(subject, rank=rank, micro_batches=micro_batches, name=f"rank {rank}")
    from pretrain.tools.plan.trace.trace_summary import summarize_trace  # noqa: PLC0415  imports megatron.core: after the bridge

    layers, groups = layers_of(layout, stage), device.group_bytes(layout)
    plan = summarize_trace(trace, stage=stage, layers=layers, recipe=recipe, groups=groups, memory=device.memory)
    return TracedStage(plan=plan, kernels=trace.kernels, notices=tuple(trace.notices))


def in_processes(
    function: Callable[..., Result], subjects: Sequence[TraceSubject], *others: Sequence[Any]
) -> list[Result]:
    """Call a function for each subject, on as many processes as there are cores."""
    # Forked: modules that this process has imported are there already. It must not have started threads.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(min(len(subjects), available_cores()), mp_context=context) as processes:
        try:
            return list(processes.map(function, subjects, *others))
        except BrokenProcessPool:
            msg = (
                "a process that traces the model was killed, probably out of memory: a trace takes about 1 GB.\n"
                "Free memory, or run fewer traces at once: taskset -c 0 pretrain plan ..."
            )
            raise BackendError(msg) from None


def trace_subject(subject: TraceSubject, *, rank: int, micro_batches: Sequence[int], name: str) -> RankTrace:
    """Trace one rank, in a process that plans for one kind of device and never trains."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # operations that are tried, and fail
    warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # DeepSpeed's alignment check
    plugins = install_for(subject)
    from pretrain.tools.plan.trace.rank_trace import trace_rank  # noqa: PLC0415  imports megatron.core: after the bridge

    sizes = {"world_size": subject.layout.world_size, "vocab_size": subject.vocab_size}
    try:
        return trace_rank(subject.recipe, plugins, rank=rank, micro_batches=micro_batches, **sizes)
    except PretrainError:
        raise
    except Exception as error:
        msg = (
            f"{name} cannot be planned: {type(error).__name__}: {error}\n"
            "A kernel that cannot run on fake tensors needs a stand-in (Offer.fake): choose another kernel in the "
            "recipe, or tell its author. PRETRAIN_TRACEBACK=1 shows where."
        )
        raise BackendError(msg) from error


def install_for(subject: TraceSubject) -> Plugins:
    """Install the bridges for a plan in this process, which must not train; return the device's plugins."""
    from pretrain.bridge import megatron  # noqa: PLC0415
    from pretrain.bridge.megatron import planning  # noqa: PLC0415
    from pretrain.plugins.host.manager import load  # noqa: PLC0415
    from pretrain.plugins.host.members import named  # noqa: PLC0415
    from pretrain.tools.plan.trace.planned_device import PlannedDevice  # noqa: PLC0415

    plugins = load(subject.device.backend_name)
    if subject.device.is_named:  # by name where possible: a forked process cannot use a device that is open here
        plugins = named(plugins, subject.device.name)
    megatron.install(PlannedDevice(plugins.backend), planned=True)
    planning.install()
    return plugins


def differing_stages(layout: Layout, experts: Sequence[int] = ()) -> list[int]:
    """Return the stages to plan: the first has the embedding, the last the loss.

    `experts`: how many layers of each stage have experts; none by default.
    """
    # Between them memory falls from stage to stage under 1F1B, since fewer micro-batches are in flight; the second is
    # planned, and those that have more layers, or more with experts, than those before.
    stages = layout.pipeline_model_parallel_size
    chosen = {0, min(1, stages - 1), stages - 1}
    for layers in filter(None, (layout.layers_of_stages, experts)):
        most = layers[min(1, stages - 1)]
        for stage in range(2, stages - 1):
            if layers[stage] > most:
                chosen.add(stage)
                most = layers[stage]
    return sorted(chosen)


def first_rank(layout: Layout, stage: int) -> int:
    """Return the first rank of a stage; megatron-core's order is tensor, context, data, pipeline."""
    return stage * layout.tensor_model_parallel_size * layout.replicas


def layers_of(layout: Layout, stage: int) -> str:
    """Return the layers of a stage as text: "12", or "6+6" of its chunks."""
    return "+".join(map(str, layout.layers_of_chunks[stage :: layout.pipeline_model_parallel_size]))


def planned_micro_batches(layout: Layout, stage: int, num_microbatches: int) -> tuple[int, int]:
    """Return the micro-batches of two steps: the fewest, and as many as the schedule needs for its peak."""
    # Under 1F1B stage r of p has at most p - r micro-batches in flight (Narayanan et al. 2021, arXiv:2104.04473,
    # section 2.2.1); one more shows a forward pass after a backward pass. The interleaved schedule runs 2 (p - r - 1) +
    # (v - 1) p forward passes of chunks first (get_pp_rank_microbatches in megatron-core's
    # pipeline_parallel/schedules.py), and takes micro-batches p at a time.
    stages, chunks = layout.pipeline_model_parallel_size, layout.virtual_pipeline_model_parallel_size
    if chunks is None or stages == 1:
        return 1, min(num_microbatches, stages - stage + 1)
    first = 2 * (stages - stage - 1) + (chunks - 1) * stages
    needed = -(-(first + 2) // (chunks * stages)) * stages
    return stages, min(num_microbatches, max(needed, 2 * stages))
