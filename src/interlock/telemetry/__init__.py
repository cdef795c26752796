"""Telemetry of a worker: events, logs, metrics and traces. Optional libraries are imported only when they are used."""
