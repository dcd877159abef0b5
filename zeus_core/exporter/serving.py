"""Give metrics to Prometheus: by a port that it asks, or by a file that its node exporter reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zeus_core.errors import UsageError
from zeus_core.exporter._exported_metrics import Collector
from zeus_core.exporter.totals import DeviceTotals
from zeus_core.files import follow_own_links, write_atomically
from zeus_core.process.sampler import Sampler

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_logger = logging.getLogger(__name__)


def check_prometheus_client() -> None:
    """Raise `UsageError` with the pip command if the library is missing."""
    try:
        import prometheus_client  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError("prometheus_client is not installed: pip install 'zeus-core[prometheus]'") from error


@contextmanager
def serve(totals: DeviceTotals, address: str, port: int, period_seconds: float) -> Iterator[int]:
    """Answer Prometheus within a block, and yield the port.

    Args:
        totals: The totals; also read once a period, so that a fault costs no more than one.
        address: The address to listen at.
        port: The port; 0 for any free one.
        period_seconds: The period.

    Raises:
        UsageError: The port or the address cannot be used.
    """
    import prometheus_client

    try:
        server, thread = prometheus_client.start_http_server(port, address, _registry(totals))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"port {port} of {address} cannot be used: {error}; choose another one, or --port 0 for any that is free"
        ) from error
    sampler = Sampler(totals.refresh, period_seconds, name="zeus-core exporter")
    sampler.start()
    try:
        yield int(server.server_port)
    finally:
        sampler.stop()
        server.shutdown()
        server.server_close()
        thread.join()


def write_file(totals: DeviceTotals, file: Path, period_seconds: float, stop: threading.Event) -> None:
    """Write the metrics into a file once a period, and once more when `stop` is set.

    Raises:
        UsageError: The file cannot be written at first. Later, one warning says so, and the next period tries again.
    """
    write = _writer(totals, file)
    try:
        write()
    except (OSError, ValueError) as error:
        raise UsageError(f"--textfile {file} cannot be written: {error}") from error
    has_warned = False
    while not stop.wait(period_seconds):
        try:
            write()
        except (OSError, ValueError) as error:
            if not has_warned:
                has_warned = True
                _logger.warning("%s cannot be written now: %s", file, error)
    write()


def _writer(totals: DeviceTotals, file: Path) -> Callable[[], None]:
    import prometheus_client

    registry = _registry(totals)
    return lambda: write_atomically(follow_own_links(file), prometheus_client.generate_latest(registry))


def _registry(totals: DeviceTotals) -> CollectorRegistry:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(Collector(totals))
    return registry
