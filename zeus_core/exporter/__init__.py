"""Energy for monitoring systems: `zeus-core exporter` for Prometheus."""
