"""The query that reads deliveries for display, and the part of an error that may be shown."""

import json
import re
from typing import Any, get_args

from sqlalchemy import ColumnElement, Dialect, Label, RowMapping, Select, Text, cast, select

from apps.common.database import engine_table

from .errors import Code
from .formatting import LEASE_LOST
from .service_models import DeliveryView
from .tables import doubts, files, orders, users

CODES = frozenset((*get_args(Code), "temporary", "unexpected"))
_ENGINE_ERROR = re.compile(rf"{LEASE_LOST}|it ran longer than its kind's max_runtime of [\d.e+]+ s")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?:: .*)?", re.ASCII)
_JOB_COLUMNS = (
    "id",
    "state",
    "phase",
    "attempt",
    "tries",
    "tries_left",
    "last_error",
    "progress",
    "cancel_requested_at",
)


def select_deliveries(dialect: Dialect) -> Select[Any]:
    """Select every order with its user, its file, its job and its doubt."""
    job = engine_table(dialect, "jobs_now", *_JOB_COLUMNS)
    doubted: Label[bool] = doubts.c.job_id.is_not(None).label("doubted")
    columns: list[ColumnElement[Any]] = [
        orders.c.job_id,
        orders.c.user_id,
        orders.c.file_id,
        orders.c.card_id,
        orders.c.shown,
        users.c.language,
        files.c.name.label("file_name"),
        job.c.state,
        job.c.phase,
        job.c.attempt,
        job.c.tries,
        job.c.tries_left,
        job.c.last_error,
        job.c.cancel_requested_at,
        cast(job.c.progress, Text).label("progress"),
        doubted,
    ]
    joined = (
        orders.join(users, users.c.id == orders.c.user_id)
        .join(files, files.c.id == orders.c.file_id)
        .join(job, job.c.id == orders.c.job_id)
    )
    return select(*columns).select_from(joined.outerjoin(doubts, doubts.c.job_id == orders.c.job_id))


def to_view(row: RowMapping) -> DeliveryView:
    """Build the view of a delivery from a row of `select_deliveries`."""
    running = row["phase"] == "running"
    # A delivery that waits for its next try still stores the progress of the last one.
    done, total, _ = json.loads(row["progress"]) if row["progress"] is not None and running else (None, None, "")
    code = public_error(row["last_error"])[0]
    return DeliveryView(
        row["job_id"],
        row["file_id"],
        row["file_name"],
        row["state"],
        done,
        total,
        code if code in {*CODES, LEASE_LOST} else None,
        row["attempt"],
        row["tries"] - row["tries_left"],
        row["doubted"],
        row["tries"],
        stopping=row["cancel_requested_at"] is not None and running,
    )


def public_error(error: str | None) -> tuple[str, str]:
    """Return the code and the sentence of a job's last error that may be shown.

    Only the courier's and the engine's own texts are shown. Of any other error, only the exception type is.
    """
    text = (error or "").strip()
    code, colon, sentence = text.partition(": ")
    if colon and code in CODES and "\n" not in text:
        return code, sentence
    if _ENGINE_ERROR.fullmatch(text):
        return text, ""
    last = _EXCEPTION.fullmatch(text.rpartition("\n")[2]) if "Traceback (most recent call last):" in text else None
    return last[1] if last else "unknown", ""
