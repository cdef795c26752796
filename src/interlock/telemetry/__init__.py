"""What a worker shows of itself: logs, metrics, traces. Nothing of it is imported, or paid for, before it is asked for."""
