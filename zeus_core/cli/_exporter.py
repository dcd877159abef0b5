"""`zeus-core exporter`: energy, power, limits and clocks for Prometheus."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from zeus_core.cli.arguments import add_gpus, add_period, port
from zeus_core.cli.electricity_arguments import add_electricity, electricity_from
from zeus_core.cli.text import write
from zeus_core.errors import NoDeviceError, UsageError
from zeus_core.validate import shown

SUMMARY = "Export energy and power to Prometheus until Ctrl-C"
EXAMPLE = "zeus-core exporter --port 9920"

_LABELS = ("user", "job_id", "namespace", "pod", "project")
_MORE_LABELS = ("job_name", "cluster")  # and tag:NAME
_MOST_LABELS = 10
_PORT = 9920  # none of those that the Prometheus project lists for exporters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_gpus(parser)
    parser.add_argument("--port", type=port, default=_PORT, metavar="PORT", help=f"port that Prometheus asks ({_PORT})")
    parser.add_argument(
        "--address", default="127.0.0.1", help="address to listen at (127.0.0.1: this machine alone; 0.0.0.0: any)"
    )
    add_period(parser, 5.0, "time between two readings of the devices")
    parser.add_argument(
        "--labels",
        metavar="LABELS",
        default=",".join(_LABELS),
        help=f"what distinguishes jobs, such as user,tag:team, or none for no metrics of jobs ({','.join(_LABELS)})",
    )
    add_electricity(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Export until Ctrl-C or SIGTERM."""
    from zeus_core.cli.metering import open_meter
    from zeus_core.exporter.jobs import JobTotals
    from zeus_core.exporter.serving import check_prometheus_client, serve
    from zeus_core.exporter.totals import DeviceTotals

    check_prometheus_client()
    labels, electricity = _labels(arguments.labels), electricity_from(arguments)
    meter = open_meter(arguments.gpus)
    if not meter.names:
        raise NoDeviceError("; ".join(["there is nothing to export", *meter.notes]))
    for note in meter.notes:
        write(f"zeus-core: {note}", sys.stderr)
    jobs = None if labels is None else JobTotals(labels, meter.monitor.time_source, electricity)
    totals, stop = DeviceTotals(meter.monitor, jobs), threading.Event()
    with _stopped_by_signals(stop), serve(totals, arguments.address, arguments.port, arguments.period) as used_port:
        write(f"metrics at http://{arguments.address}:{used_port}/metrics, until Ctrl-C", sys.stdout)
        stop.wait()
    return 0


def _labels(text: str) -> tuple[str, ...] | None:
    """Return the labels of jobs; None for no jobs."""
    if text == "none":
        return None
    labels = tuple(text.split(",")) if text else ()
    is_known = [each in (*_LABELS, *_MORE_LABELS) or re.fullmatch(r"tag:[A-Za-z0-9_.-]+", each) for each in labels]
    if not all(is_known) or len(set(labels)) < len(labels) or len(labels) > _MOST_LABELS:
        raise UsageError(
            f"--labels is {shown(text)}; it must be none, or at most {_MOST_LABELS} of "
            f"{', '.join((*_LABELS, *_MORE_LABELS))} and tag:NAME, each once, such as user,tag:team"
        )
    return labels


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Have Ctrl-C and SIGTERM set an event within a block."""
    handlers = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
