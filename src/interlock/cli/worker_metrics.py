"""The metrics of one worker process: served by it, or sent to its supervisor."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from ..worker.plan import Plan

if TYPE_CHECKING:
    from ..telemetry.metrics import Depths, States


def metrics_page(plan: Plan) -> WSGIApplication:
    """Count the events of this process from now on, and return a page with its metrics."""
    from ..telemetry.metrics import metrics_page as page_of

    depths, states = _numbers_of_jobs(plan)
    page, _ = page_of(plan.events, depths=depths, states=states)
    return page


def metrics_answers(plan: Plan) -> dict[str, Callable[[], list[Any]]]:
    """Return the questions of a supervisor about metrics, and the functions that answer them."""
    from ..telemetry.merged_metrics import COUNTS, DATABASE, MetricsSource

    depths, states = _numbers_of_jobs(plan)
    source = MetricsSource(plan.events, depths=depths, states=states)
    return {COUNTS: source.counts, DATABASE: source.database}


def _numbers_of_jobs(plan: Plan) -> tuple["Depths", "States"]:
    return (
        lambda: plan.find_store().inspect.depths(),  # noqa: PLW0108 - opens the store when called
        lambda: plan.find_store().inspect.counts(),  # noqa: PLW0108 - opens the store when called
    )
