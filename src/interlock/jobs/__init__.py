"""The parts of a job that a user writes: kinds, options, requests, results and schedules."""
