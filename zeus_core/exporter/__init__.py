"""Energy for monitoring systems: `zeus-core exporter` for Prometheus, and metrics of OpenTelemetry."""

from zeus_core.exporter._opentelemetry import export_to_opentelemetry

__all__ = ["export_to_opentelemetry"]
