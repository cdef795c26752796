"""Suspects: jobs that were running when a process died. The rules for where they run next, and what a loss costs.

The first loss costs a try, and the job runs next in a process together with other suspects. If that process dies, too,
the second loss costs nothing yet, and the job runs alone from then on. If it then kills its process, it pays for the
second loss as well, so it runs exactly as often as it has tries. An innocent job pays once.
"""

from .job import Job


def runs_grouped(job: Job) -> bool:
    """Whether a suspect may share its process with other suspects. After a second loss, or on its last try, it runs alone."""
    return job.lease_losses == 1 and job.tries_left > 1


def unpaid(job: Job) -> int:
    """How many losses the job has not paid for. The second one is unpaid until a third shows that the job caused it."""
    return int(job.lease_losses == 2)


def left_after_loss(job: Job) -> int:
    """The tries that are left when the process, or the worker, of a job has died."""
    return job.tries_left if runs_grouped(job) else left_after_crash(job)


def left_after_crash(job: Job) -> int:
    """The tries that are left when a job has ended a process that it had to itself."""
    return max(job.tries_left - 1 - unpaid(job), 0)
