"""The job request of a schedule as the database stores it: a kind's name, a payload, and options."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, cast

from ..core.payload import encode_tags
from ..errors import UsageError
from ..store import OpenStore
from ..store.schedule_types import ScheduleFacts
from .enqueue import Transaction
from .options import Options
from .request import JobRequest
from .schedule import STORED, Schedule
from .spec import KindSpec


def facts_of(schedule: Schedule) -> ScheduleFacts:
    """Return what the database stores of a schedule."""
    request = schedule.request
    return ScheduleFacts(
        schedule.name,
        request.spec.name,
        schedule.cron,
        schedule.tz,
        schedule.catch_up,
        request.payload,
        json.dumps(shown_options(request.options)),
    )


def shown_options(options: Options) -> dict[str, Any]:
    """Return the options that are set, as arguments of `kind.using`."""
    given = {name: value for name in STORED if (value := getattr(options, name)) is not None}
    return given | ({"tags": json.loads(given["tags"])} if "tags" in given else {})


def request_of(spec: KindSpec, facts: ScheduleFacts) -> JobRequest[Any]:
    """Return the request of a stored schedule. `PayloadError` or `UsageError` if the kind does not accept it."""
    arguments = spec.signature.check(cast("Mapping[str, Any]", json.loads(facts.payload)))
    given: dict[str, Any] = json.loads(facts.options)
    if unknown := [name for name in given if name not in STORED]:
        raise UsageError(
            f"The schedule {facts.name} has options that this version does not know: {unknown}. Upgrade this program, "
            "or change the schedule."
        )
    if "tags" in given:
        given["tags"] = encode_tags(given["tags"])
    return JobRequest(spec, arguments, facts.payload, Options(**given))


def schedule_transaction(
    store: OpenStore, spec: KindSpec, transaction: Transaction | None
) -> AbstractContextManager[Any]:
    """Open the transaction that enqueues a schedule's job: the app's own if the kind's `admit` takes its handle."""
    return transaction() if transaction is not None and spec.admit is not None else store.transaction()
