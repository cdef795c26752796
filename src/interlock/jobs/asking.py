"""Makes the question of a job, for `run.ask`."""

from typing import Any

from ..core.clock import Seconds, seconds
from ..core.job import Job
from ..errors import UsageError
from .question import Question, Terms, question_id
from .spec import KindSpec

NO_DEFAULT = object()
"""Marks a question without a default: without an answer, the job fails."""


def ask(spec: KindSpec, job: Job, timeout: Seconds, default: object) -> Question[Any]:
    """Return the question of a job. It is the same in every attempt; its token is the same in a redriven job."""
    if not spec.signature.asks:
        raise UsageError(
            f"{spec.name} asks a question, but its return annotation does not say so: write it as "
            "-> Question[bool], with the type of the answer, and return the question."
        )
    if (limit := seconds(timeout, "timeout")) == 0:
        raise UsageError("timeout is zero, so nobody could answer in time: give more than 0 seconds.")
    value = None if default is NO_DEFAULT else spec.signature.dump_value(default)
    return Question(question_id(job.id), spec.tokens.sign(spec.name, job.root or job.id), Terms(limit, value))
