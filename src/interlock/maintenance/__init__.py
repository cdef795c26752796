"""Maintenance that every worker runs besides its own jobs: recovery, expiry, schedules and pruning."""
