"""Tries every kernel that a training would take on this rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pretrain.conformance.example_calls import as_function
from pretrain.engine.kernels import Negotiation
from pretrain.model.requests import attention_requests, kernel_requests
from pretrain.plugins.negotiation.kernels import negotiate
from pretrain.plugins.requests import AttentionRequest, CrossEntropyRequest, OptimizerRequest
from pretrain.recipe.layout import linear_shapes
from pretrain.tools.doctor.finding import Finding, Verdict, guarded
from pretrain.tools.doctor.trials import TooLargeError, dropout_fault, make_trial, optimizer_deviations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.kernels import Kernels
    from pretrain.plugins.requests import Request
    from pretrain.recipe import Recipe
    from pretrain.tools.doctor.trials import Deviation, ShapeLimits

CHECK = "kernels"  # name of the finding that lists them
_MOST_COLUMNS = 16384
OTHER = "Name another kernel in the recipe (kernels.{operation}; `pretrain explain` lists them)"
REMEDIES = {
    Verdict.WRONG: f"The training would be wrong. {OTHER}, and run `pretrain conformance --backend {{backend}}`.",
    Verdict.LOOK: f"Less exact than other kernels of this dtype. {OTHER} if losses must be comparable.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """Everything that the trials of a rank share."""

    recipe: Recipe
    plugins: Plugins  # of this rank, whose device is the current one
    device: torch.device
    limits: ShapeLimits
    vocab_size: int  # entries of the tokenizer, before padding
    doing: Callable[[str], None]
    chosen: dict[str, str]  # gets the kernel of each operation, and its provider


def examine_kernels(bench: Bench) -> Iterator[Finding]:
    """Yield the kernels that a training would take, and a finding for the trial of each."""
    recipe, plugins = bench.recipe, bench.plugins
    bench.doing("negotiation of kernels")
    negotiation = Negotiation(recipe, plugins)
    kernels = negotiation.kernels(bench.vocab_size, negotiation.collectives())
    rows = [row for row in kernels.table.rows if row.operation != "collectives"]
    bench.chosen.update({row.operation: f"{row.kernel} ({row.provider})" for row in rows})
    listed = ", ".join(f"{row.operation} {row.kernel}" for row in rows)
    providers = ", ".join(dict.fromkeys(row.provider for row in rows))
    yield Finding.ok(CHECK, f"{listed}; of {providers}")
    requests = kernel_requests(recipe, plugins.backend.device_type, bench.vocab_size, plugins.backend.device_name())
    for request in requests:
        if request.key in kernels:
            check = f"kernel {request.key}"
            bench.doing(check)
            yield from guarded(check, partial(_trials, bench, kernels, request, check))


def _trials(bench: Bench, kernels: Kernels, request: Request, check: str) -> Iterator[Finding]:
    row = next(row for row in kernels.table.rows if row.operation == request.key)
    kernel = kernels.built[request.key]
    if isinstance(request, AttentionRequest):
        yield from _attention(bench, kernels, request, check, stores_scores=row.kind != "flash")
    elif isinstance(request, OptimizerRequest):
        shape = bench.recipe.model.ffn_hidden_size, bench.recipe.model.hidden_size
        found = optimizer_deviations(request, kernel, shape, bench.device)
        yield _judged(bench, check, f"{request.name}, a weight of {shape[0]} x {shape[1]} and a bias", found)
    elif isinstance(request, CrossEntropyRequest) and request.tensor_parallel_size > 1:
        # The kernel of the same name for the columns of one rank needs no other rank.
        columns = request.padded_vocab_size // request.tensor_parallel_size
        entries = min(request.vocab_size, columns)
        alone = replace(request, tensor_parallel_size=1, padded_vocab_size=columns, vocab_size=entries)
        built = negotiate(bench.plugins, [alone], {request.operation: row.kernel}, "allow")
        yield _tried(bench, check, alone, built.cross_entropy)
    elif request.key == "linear@output":
        columns = bench.recipe.padded_vocab_size(bench.vocab_size) // bench.recipe.parallel.tensor_model_parallel_size
        columns = min(columns, _MOST_COLUMNS)  # in float64 on the host too
        yield _tried(bench, check, request, kernel, linear=(bench.recipe.model.hidden_size, columns))
    elif request.key == "linear@router":
        shape = bench.recipe.model.hidden_size, bench.recipe.model.num_experts or 0
        yield _tried(bench, check, request, kernel, linear=shape)
    elif request.operation == "linear":
        yield from _linears(bench, check, request, kernel)
    else:
        yield _tried(bench, check, request, kernel)


def _attention(
    bench: Bench, kernels: Kernels, request: AttentionRequest, check: str, *, stores_scores: bool
) -> Iterator[Finding]:
    yield _tried(bench, check, request, kernels.attention, stores_scores=stores_scores)
    model = bench.recipe.model
    if model.apply_query_key_layer_scaling and model.num_layers > 1:
        backend, number = bench.plugins.backend, model.num_layers
        last = attention_requests(bench.recipe, backend.device_type, backend.device_name(), layer_number=number)[-1]
        kernel = Negotiation(bench.recipe, bench.plugins).attention_of_layer(kernels, number)
        yield _tried(bench, f"{check} of layer {number}", last, kernel, stores_scores=stores_scores)


def _linears(bench: Bench, check: str, request: Request, kernel: Any) -> list[Finding]:
    first, others = _tried(bench, check, request, kernel), linear_shapes(bench.recipe)[1:]
    findings = [first, *(_tried(bench, check, request, kernel, linear=shape) for shape in others)]
    shapes = ", ".join(f"{rows} to {columns}" for rows, columns in others)
    fine = replace(first, text=f"{first.text}; with fewer tokens {shapes}")
    return [finding for finding in findings if finding.verdict is not Verdict.OK] or [fine]


def _tried(bench: Bench, check: str, request: Request, kernel: Any, **options: Any) -> Finding:
    try:
        trial = make_trial(request, bench.recipe, bench.limits, **options)
    except TooLargeError as reason:
        return Finding.look(check, f"not tried: {reason}")
    kernel = as_function(request.operation, kernel)
    finding = _judged(bench, check, trial.sizes, trial.deviations(kernel, bench.device))
    if getattr(request, "dropout", 0.0):
        bench.doing(f"{check} with dropout")  # another sign of life: each of the two may take long
    fault = dropout_fault(trial, kernel, bench.device, request)
    if finding.verdict is Verdict.OK and fault:
        return _bad(bench, check, Verdict.WRONG, f"{fault}; {trial.sizes}")
    return finding


def _judged(bench: Bench, check: str, sizes: str, found: Iterable[Deviation]) -> Finding:
    listed = list(found)
    for verdict in (Verdict.WRONG, Verdict.LOOK):
        if over := [deviation for deviation in listed if deviation.verdict is verdict]:
            return _bad(bench, check, verdict, f"{'; '.join(map(str, over))}; {sizes}")
    worst = max(listed, key=lambda deviation: deviation.error / deviation.allowed)
    return Finding.ok(check, f"agrees with float64, {worst}; {sizes}")


def _bad(bench: Bench, check: str, verdict: Verdict, text: str) -> Finding:
    operation = check.split()[1]
    remedy = REMEDIES[verdict].format(operation=operation, backend=bench.plugins.backend.name)
    return Finding(check=check, verdict=verdict, text=text, remedy=remedy)
