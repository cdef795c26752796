"""The metrics of one worker process: served by it, or sent to its supervisor."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..worker.plan import Plan

if TYPE_CHECKING:
    from ..telemetry.metrics import Depths, Served, States


def serve_metrics(plan: Plan, host: str, port: int) -> "Served":
    """Serve the metrics of this process over HTTP."""
    from ..telemetry.metrics import serve

    depths, states = _numbers_of_jobs(plan)
    return serve(plan.events, port, host=host, depths=depths, states=states)


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
