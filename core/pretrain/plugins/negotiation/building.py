"""Negotiation of the kernels of a run: chosen and built once, before the model is built."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pretrain.errors import BackendError
from pretrain.plugins.host.importing import cause
from pretrain.plugins.negotiation.choosing import choose
from pretrain.plugins.negotiation.kernel_table import KernelTable
from pretrain.plugins.negotiation.kernels import Kernels
from pretrain.plugins.signatures import OptimizerKernels
from pretrain.plugins.stand_in import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pretrain.plugins.host.manager import Plugins
    from pretrain.plugins.negotiation.choosing import KernelChoice
    from pretrain.plugins.negotiation.kernel_table import KernelRow
    from pretrain.plugins.requests import Request

    WrapKernel = Callable[[Request, Any], Any]


def negotiate(
    plugins: Plugins,
    requests: Sequence[Request],
    chosen: Mapping[str, str],
    fallback: str,
    *,
    earlier: Kernels | None = None,
    planned: bool = False,
    wrap_kernel: WrapKernel | None = None,
) -> Kernels:
    """Choose a kernel for every request and build it; raises KernelError where an operation has no allowed kernel.

    `chosen` is operation -> "auto" (also where it is not in it), a kernel's name, or a kind ("flash"). With `fallback`
    "forbid" an operation that only the reference serves is an error, unless the recipe names the reference kernel.
    Kernels negotiated `earlier` (collectives are needed before there are process groups) are passed to `Offer.build`,
    and are part of the result unless they are negotiated again. `planned` makes the stand-ins (`Offer.fake`), and
    `wrap_kernel` returns what is called in place of a built kernel, to watch its calls.
    """
    choices = choose(plugins, requests, chosen, fallback)
    built: dict[str, Any] = dict(earlier.built) if earlier else {}
    for choice in choices:
        kernel = _build(choice, MappingProxyType(dict(built)), planned=planned)
        built[choice.request.operation] = kernel if wrap_kernel is None else wrap_kernel(choice.request, kernel)
    rows = {row.operation: row for row in (earlier.table.rows if earlier else ())}
    rows |= {choice.request.operation: choice.row for choice in choices}
    return Kernels(table=table_of(plugins, rows.values()), built=MappingProxyType(built))


def table_of(plugins: Plugins, rows: Iterable[KernelRow]) -> KernelTable:
    """Return the kernel table of rows, as `KernelChoice.row` gives them."""
    return KernelTable(backend=plugins.backend.name, provider=plugins.provider, rows=tuple(rows))


def _build(choice: KernelChoice, built: Mapping[str, Any], *, planned: bool) -> Any:
    operation = choice.request.operation
    is_optimizer = operation == "optimizer"
    who = f"kernel {choice.taken.label} for {operation}"
    try:
        kernel = (choice.offer.fake or choice.offer.build)(built) if planned else choice.offer.build(built)
    except Exception as exc:
        msg = f"{who} cannot be built: {cause(exc)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from exc
    if not (isinstance(kernel, OptimizerKernels) if is_optimizer else callable(kernel)):
        wanted = "OptimizerKernels" if is_optimizer else "something callable"
        msg = f"{who}: its build returned {type(kernel).__name__}, not {wanted} (see docs/hooks.md)."
        raise BackendError(msg)
    return within(operation, kernel) if planned and not is_optimizer else kernel
