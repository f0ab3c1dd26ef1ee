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
    """Choose a kernel for every request and build it.

    Args:
        plugins: those of the run.
        requests: one for each operation that is needed now.
        chosen: operation -> "auto", a kernel's name, or a kind ("flash"); operations not in it are "auto".
        fallback: "allow", or "forbid": then an operation that only the reference serves is an error, unless the
            recipe names the reference kernel.
        earlier: kernels negotiated before (collectives are needed before there are process groups); they are passed
            to `Offer.build`, and are part of the result and of its table unless they are negotiated again.
        planned: make the stand-ins of the kernels, for torch's fake tensors (`Offer.fake`).
        wrap_kernel: returns what is called in place of a built kernel, to watch its calls; None: the kernel itself.

    Raises:
        KernelError: no allowed kernel is left for an operation.
        BackendError: a plugin broke the contract of the hooks.
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
    who = f"kernel {choice.taken.label} for {operation}"
    try:
        kernel = (choice.offer.fake or choice.offer.build)(built) if planned else choice.offer.build(built)
    except Exception as exc:
        msg = f"{who} cannot be built: {cause(exc)}\nPRETRAIN_TRACEBACK=1 shows where."
        raise BackendError(msg) from exc
    expected = isinstance(kernel, OptimizerKernels) if operation == "optimizer" else callable(kernel)
    if expected and planned and operation != "optimizer":
        return within(operation, kernel)
    if not expected:
        wanted = "OptimizerKernels" if operation == "optimizer" else "something callable"
        msg = f"{who}: its build returned {type(kernel).__name__}, not {wanted} (see docs/hooks.md)."
        raise BackendError(msg)
    return kernel
