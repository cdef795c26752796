"""The health of several worker processes as one."""

import asyncio

from .health import HEALTH, Health
from .supervised_worker import SupervisedWorker
from .supervisor import Supervisor

ANSWER_TIMEOUT = 2.0
"""Seconds that a process has to report its health. A thread answers, so user code cannot block it."""


async def health_of_workers(supervisor: Supervisor) -> Health:
    """Return the health of a supervisor: healthy if no worker is unhealthy, and ready if one worker is ready."""
    each = await asyncio.gather(*map(_health_of, supervisor.workers))
    unhealthy = [problem for one in each for problem in one.unhealthy]
    if supervisor.stopping:
        return Health(unhealthy, ["The supervisor is stopping, and its workers claim no more jobs."])
    if any(not one.unready for one in each):
        return Health(unhealthy, [])
    return Health(unhealthy, [problem for one in each for problem in one.unready] or ["No worker has started yet."])


async def _health_of(worker: SupervisedWorker) -> Health:
    """Return the health of one worker; each sentence names the worker. One that is restarted soon is not unhealthy."""
    if not worker.answers:
        return Health([], [f"{worker.name}: The worker is starting, or the supervisor restarts it soon."])
    answer = await worker.ask(HEALTH, ANSWER_TIMEOUT)
    if answer is None:
        if not worker.answers:
            return Health([], [f"{worker.name}: The worker has ended; the supervisor restarts it soon."])
        silent = f"{worker.name}: The process has not answered for {ANSWER_TIMEOUT:g} s."
        return Health([silent], [silent])
    unhealthy, unready = ([f"{worker.name}: {problem}" for problem in problems] for problems in answer)
    return Health(unhealthy, unready)
