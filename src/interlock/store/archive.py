"""The digest of an archived audit."""

import hashlib
import json
from collections.abc import Sequence

from ..core.job import AuditEntry


def line(entry: AuditEntry) -> str:
    """An entry as one line of JSON, the same from either store."""
    return json.dumps(
        {
            "job_id": entry.job_id,
            "version": entry.version,
            "n": entry.n,
            "attempt": entry.attempt,
            "event": entry.event,
            "from_state": entry.from_state,
            "to_state": entry.to_state,
            "actor": entry.actor,
            "reason": entry.reason,
            "at": entry.at.isoformat(),
            "detail": entry.detail,
        },
        ensure_ascii=False,
        separators=(",", ":"),
    )


def digest_of(entries: Sequence[AuditEntry]) -> str:
    return hashlib.sha256("\n".join(map(line, entries)).encode()).hexdigest()
