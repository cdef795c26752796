"""Returns jobs that were claimed in advance and have not started, so that another worker can run them at once."""

from collections.abc import Iterable

from ..core.outcome import Requeued
from ..engine.reporter import Reporter
from ..engine.settlement import OnSettled
from .lanes import Lane
from .slot_queue import LONGEST_WAIT


class UnstartedJobs:
    """Returns the jobs of lanes that wait for a slot. They keep their tries and their place in the queue."""

    def __init__(self, reporter: Reporter, on_returned: OnSettled) -> None:
        self._reporter = reporter
        self._on_returned = on_returned

    def return_all(self, lanes: Iterable[Lane], why: str) -> None:
        for lane in lanes:
            self._return(lane, why)

    def return_late(self, lane: Lane) -> None:
        """Return those that have waited for too long. The lane claims nothing in advance for a while."""
        lane.prefetch.suspend()
        self._return(lane, f"the worker had no free slot within {LONGEST_WAIT:g} s", late=True)

    def _return(self, lane: Lane, why: str, *, late: bool = False) -> None:
        for execution in lane.queue.remove_unstarted(late=late):
            execution.ran_elsewhere = True  # no handler ran, so the attempt has no run time
            outcome = Requeued(f"returned before it started: {why}", started=False)
            self._reporter.post(execution, outcome, self._on_returned)
