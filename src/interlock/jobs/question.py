"""A question to a person or another system: a handler returns it, and the job waits for the answer until a deadline."""

import json
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import TypeVar

from ..core.job import Execution
from ..core.payload import encode
from ..store.types import Lease
from .results import External

R_co = TypeVar("R_co", covariant=True)
_PREFIX = "question:"
_UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60))


@dataclass(frozen=True)
class Question(External[R_co]):
    """A question that `run.ask` makes. Return it from the handler: the job waits for the answer, an R."""

    token: str = field(repr=False)
    """Proves the right to answer: put it into a link. It is the same in every attempt, and fits into a URL."""
    terms: "Terms" = field(repr=False)


@dataclass(frozen=True)
class Terms:
    """How long a job waits for an answer, and what happens without one. The execution stores them while it waits."""

    timeout: float
    default: str | None = None
    """The default as JSON text: without an answer, the job succeeds with it. None: the job fails."""

    @property
    def unanswered(self) -> str:
        """The error of a question that nobody answered in time."""
        return f"nobody answered within {_in_words(self.timeout)}"

    def dump(self) -> str:
        given = {} if self.default is None else {"default": json.loads(self.default)}
        return encode({"timeout": self.timeout, **given}, what="question")

    @classmethod
    def load(cls, text: str) -> "Terms":
        stored: dict[str, Any] = json.loads(text)
        return cls(stored["timeout"], encode(stored["default"]) if "default" in stored else None)


def question_id(job_id: str) -> str:
    """Return the external id of an execution of this job that waits for an answer."""
    return f"{_PREFIX}{job_id}"


def is_question(work: Lease | Execution) -> bool:
    """Whether handed-over work is a question: its id says so, and its execution stores the terms."""
    return work.external_id is not None and work.external_id.startswith(_PREFIX) and work.result is not None


def _in_words(length: float) -> str:
    """Format a duration in the largest unit that divides it: 3 days, 36 hours, 90 seconds."""
    unit, size = next(((unit, size) for unit, size in _UNITS if length % size == 0), ("second", 1))
    return f"{length / size:g} {unit}{'' if length == size else 's'}"
