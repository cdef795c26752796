"""The keeper: what a worker does for all, beside its own jobs."""
