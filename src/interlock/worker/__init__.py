"""The worker: claims jobs, runs them, renews their leases and reports their outcomes."""
