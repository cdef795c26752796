"""`interlock workers`: lists workers."""

from dataclasses import asdict
from typing import Any

from ..store.types import WorkerSeen
from . import output
from .arguments import format_age
from .common_options import AppOption, DatabaseOption, JsonOption, open_app
from .text_table import Column


def workers(*, app: AppOption = None, database: DatabaseOption = None, json: JsonOption = False) -> None:
    """List the workers that have reported to the database and have not shut down cleanly.

    A worker without a heartbeat for 30 seconds does not count as alive; its row is deleted after a day.

    Example: interlock workers --json
    """
    with open_app(app, database) as chosen:
        seen = chosen.database.store().workers.all()
    if json:
        output.print_json([worker_fields(one) for one in seen])
        return
    if not seen:
        output.print_note("No worker is running: start one with interlock worker -A MODULE:APP.")
        return
    comma = "," if output.terminal_width() is None else ", "
    host, pid = Column("host", spare=True), Column("pid", "whole", spare=True)
    kinds, queues = Column("kinds", "wrap"), Column("queues", "wrap")
    output.print_table(
        ("name", host, pid, "state", "busy", kinds, queues, "last heartbeat"),
        [
            (
                one.facts.name,
                one.facts.host,
                one.facts.pid,
                one.facts.state if one.alive else "silent",
                f"{one.facts.busy}/{one.facts.slots}",
                comma.join(one.facts.kinds),
                comma.join(one.facts.queues),
                f"{format_age(one.silent)} ago",
            )
            for one in seen
        ],
    )


def worker_fields(one: WorkerSeen) -> dict[str, Any]:
    return {
        **asdict(one.facts),
        "alive": one.alive,
        "started_at": one.started_at,
        "heartbeat_at": one.heartbeat_at,
        "silent": one.silent,
    }
