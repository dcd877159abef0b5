"""`zeus-core exporter`: energy, power, limits and clocks for Prometheus."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from zeus_core.cli.arguments import add_gpus, port
from zeus_core.cli.text import write
from zeus_core.errors import NoDeviceError

PLACE = "For a machine or a cluster", 40
SUMMARY = "Export energy and power to Prometheus until Ctrl-C"
EXAMPLE = "zeus-core exporter --port 9920"

_PORT = 9920  # none of those that the Prometheus project lists for exporters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    parser.add_argument("--port", type=port, default=_PORT, metavar="PORT", help=f"port that Prometheus asks ({_PORT})")
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine alone; 0.0.0.0: any)"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Export until Ctrl-C or SIGTERM."""
    from zeus_core.cli.metering import open_meter
    from zeus_core.exporter.jobs import JobTotals
    from zeus_core.exporter.prometheus import check_prometheus_client, serve
    from zeus_core.exporter.totals import DeviceTotals
    from zeus_core.ports.run_identity import identity_here

    check_prometheus_client()
    meter = open_meter(arguments.gpus)
    if not meter.names:
        raise NoDeviceError("; ".join(["there is nothing to export", *meter.notes]))
    for note in meter.notes:
        write(f"zeus-core: {note}", sys.stderr)
    jobs = None if identity_here() is None else JobTotals(meter.monitor.time_source)
    totals, stop = DeviceTotals(meter.monitor, jobs), threading.Event()
    with _stopped_by_signals(stop), serve(totals, arguments.address, arguments.port) as used_port:
        write(f"metrics at http://{arguments.address}:{used_port}/metrics, until Ctrl-C", sys.stdout)
        stop.wait()
    return 0


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM set an event within a block."""
    handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
