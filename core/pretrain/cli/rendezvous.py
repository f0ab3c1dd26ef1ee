"""`pretrain rendezvous`: serve the store in which the nodes of a run meet, on a machine that trains nothing."""

from __future__ import annotations

import signal

import click

from pretrain.errors import LaunchError


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=29500,
    show_default=True,
    metavar="PORT",
    help="Port of --rdzv HOST:PORT, on all addresses of this machine.",
)
def command(*, port: int) -> None:
    """Serve a rendezvous until Ctrl-C or SIGTERM.

    Nodes use it with --rdzv HOST:PORT --external-rdzv, where HOST is this machine; one run at a time, and another one
    after it. It keeps a few kilobytes a node and run in memory, and nothing on disk. Whoever reaches the port can
    change the run and what its ranks execute: keep it inside the cluster's network.
    """
    from torch.distributed import DistError, TCPStore  # type: ignore[attr-defined]  # noqa: PLC0415  --help is quick

    from pretrain.launch.nodes.joining import OF_NO_RUN, RUN  # noqa: PLC0415

    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # before the store begins threads
    try:
        store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    except DistError as error:
        msg = f"--port {port} cannot be served here: {str(error).splitlines()[0]}\nPass another --port."
        raise LaunchError(msg) from error
    store.set(RUN, OF_NO_RUN)
    click.echo(f"the rendezvous is served at port {port}; nodes join with --rdzv HOST:{port} --external-rdzv", err=True)
    signal.sigwait(signals)
