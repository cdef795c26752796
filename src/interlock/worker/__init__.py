"""The worker: claims jobs, runs them, keeps their leases and reports what became of them."""
