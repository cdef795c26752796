"""Suspects: jobs that were running when a process died. These rules say where they run next and what a loss costs.

The first loss costs a try, and the job's next attempt shares a process with other suspects. If that process also dies,
the second loss costs no try yet, and the job runs alone from then on. If the job then kills its own process, it is
also charged for the second loss, so it never runs more often than it has tries. An innocent job loses one try.
"""

from .job import Job


def runs_grouped(job: Job) -> bool:
    """Whether a suspect may share a process with other suspects: not after a second loss or on its last try."""
    return job.lease_losses == 1 and job.tries_left > 1


def uncharged_losses(job: Job) -> int:
    """How many losses have not cost a try yet: the second costs one only if a third shows that the job caused it."""
    return int(job.lease_losses == 2)


def tries_after_loss(job: Job) -> int:
    """The tries left after the process or the worker of a job died."""
    return job.tries_left if runs_grouped(job) else tries_after_crash(job)


def tries_after_crash(job: Job) -> int:
    """The tries left after a job killed a process in which it ran alone."""
    return max(job.tries_left - 1 - uncharged_losses(job), 0)
